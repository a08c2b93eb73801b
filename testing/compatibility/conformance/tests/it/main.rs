//! What clients see, beside memcached: a file for each subject, in one program, which is linked once.

mod binary;
mod flushes;
mod frames;
mod idle;
mod late;
mod sasl;
mod sizes;
mod states;
mod table;
mod uniques;
mod watch;
