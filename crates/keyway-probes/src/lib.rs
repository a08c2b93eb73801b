//! Keyway's probes: the places at which a tracer (bpftrace, perf, SystemTap, GDB) can look into a running program, each once.
//!
//! A probe is one `nop`, and a note in the program's file (`.note.stapsdt`) that says where it is and which registers hold its
//! arguments: a static probe of user space (USDT), as `<sys/sdt.h>` makes them. A tracer that is attached has the kernel put a
//! breakpoint in the place of the `nop`. While none is, nothing is written, asked or called. So the arguments are what the caller has
//! in registers anyway. `docs/operating.md` lists the probes with a line for bpftrace each.
//!
//! Functions that are compiled into their callers have their probe in each of them: a probe may be at several places of a file.
//!
//! Never: a system call, a word of memory that is read or written, or a decision.

#![no_std]

use probe::probe;

/// The probes of a verb.
pub trait Verb {
    /// The begin of a call, with its key (none: empty).
    fn entry(key: &[u8]);
    /// The end.
    fn exit();
}

/// A verb, its name, and the names of its two probes.
macro_rules! verbs {
    ($($verb:ident: $entry:ident, $exit:ident, $what:literal;)*) => {$(
        #[doc = $what]
        #[derive(Debug)]
        pub enum $verb {}

        impl Verb for $verb {
            #[inline(always)]
            fn entry(key: &[u8]) {
                probe!(keyway, $entry, key.as_ptr(), key.len());
            }

            #[inline(always)]
            fn exit() {
                probe!(keyway, $exit);
            }
        }
    )*};
}

verbs! {
    Get: get_entry, get_return, "Gets of every kind.";
    Set: set_entry, set_return, "Stores of every kind.";
    Delete: delete_entry, delete_return, "Deletes, and marks as stale.";
    Arithmetic: arithmetic_entry, arithmetic_return, "Increments and decrements.";
    Touch: touch_entry, touch_return, "Touches.";
    Flush: flush_entry, flush_return, "`flush_all`.";
}

/// A server begins to execute a request, or a further piece of one: from this door (the number that regions have of it), of the
/// connection with this descriptor.
#[inline(always)]
pub fn request_entry(door: u8, descriptor: i32) {
    probe!(keyway, request_entry, door, descriptor);
}

/// The answer of the request, or of the piece, is in the output.
#[inline(always)]
pub fn request_return() {
    probe!(keyway, request_return);
}

/// A change of a key is visible: its slot has the second word in the place of the first one. That of an insert has had a tentative
/// word, that of a removed item has 0 or a word that names none.
#[inline(always)]
pub fn publish(from: u64, to: u64) {
    probe!(keyway, publish, from, to);
}

/// An item was evicted: its key, which is in the region, the bytes of its place there, and whether it was ever read.
#[inline(always)]
pub fn evict(key: *const u8, key_len: usize, size: usize, fetched: bool) {
    probe!(keyway, evict, key, key_len, size, fetched);
}

/// What a dead thread held was taken back: the numbers of its thread slot and of its process's slot.
#[inline(always)]
pub fn recover(thread_slot: usize, process_slot: usize) {
    probe!(keyway, recover, thread_slot, process_slot);
}
