//! The region, from outside: a file for each subject, in one program, which is linked once. What needs a region that was built otherwise
//! stands beside.

mod clock;
mod epochs;
mod flights;
mod flood;
mod hot;
mod idle;
mod lent;
mod limit;
mod misplaced;
mod model;
mod numbers;
mod odd_words;
mod private;
mod room;
mod scribbled;
mod trail;
mod uniques;
mod watch;
mod words;
