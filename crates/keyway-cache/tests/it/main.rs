//! The library door, from outside: a file for each subject, in one program, which is linked once. Those that change their own process are
//! programs of their own.

mod attach;
mod bulk;
mod callbacks;
mod changing;
mod clock;
mod copying;
mod counters;
mod counting;
mod creation;
mod death;
mod examples;
mod fetch;
mod fitting;
mod handout;
mod kernel_door;
mod latency;
mod limit;
mod limits;
mod many;
mod model;
mod repair;
mod resize;
mod restart;
mod rules;
mod slots;
mod survey;
mod trust;
