//! The server, from outside: a file for each subject, in one program, which is linked once.

mod commands;
mod held_up;
mod holds;
mod latency;
mod logins;
mod readers;
mod refusals;
mod server;
mod slotless;
mod tls;
