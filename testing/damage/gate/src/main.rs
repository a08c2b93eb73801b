//! `gate`: a program for `keyway exec` to start. It tries each known way to its region past the library's calls, and says of each
//! whether it is stopped, on one line: `NAME stopped`, or `NAME open: what was got`.
//!
//! Standard input says where the region is mapped. The library it finds as any program does into which it is preloaded.

#![allow(clippy::print_stdout, reason = "its answers")]

use gate::{library::Library, ways};
use std::io::BufRead;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, file] = arguments.as_slice() else {
        println!(
            "gate PLACE FILE: to be started by keyway exec; the region's addresses (FROM-TO, hexadecimal) come on standard input"
        );
        std::process::exit(64);
    };
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("standard input");
    let (from, to) = line.trim().split_once('-').expect("FROM-TO");
    let [from, to] = [from, to].map(|n| usize::from_str_radix(n, 16).expect("hexadecimal"));
    let Some(library) = Library::find() else {
        println!("library absent");
        std::process::exit(1);
    };
    for (name, outcome) in ways::all(&library, place, file, from..to) {
        match outcome {
            Ok(()) => println!("{name} stopped"),
            Err(got) => println!("{name} open: {got}"),
        }
    }
    println!("end");
}
