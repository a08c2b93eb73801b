//! `cargo xtask attack`: what hostile neighbours and clients can do, tried; each attack beside the promise that it would break.
//!
//! An attack is an entry of a table ([`attack::Attack`]); a new one is added to the table of its file, and needs nothing else. Those that hold
//! up others are also [`siege::Siege`]s: they are carried on in a process of their own (this program, started again) while an ordinary client
//! is measured.
//! Guards: P37
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

mod attack;
mod crowd;
mod datagrams;
mod logins;
mod memory;
mod ordinary;
mod siege;
mod text;
mod time;

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use attack::{Attack, Form};

const HELP: &str = "\
cargo xtask attack: what hostile neighbours and clients can do, tried; prints attack, promise and outcome

    cargo xtask attack               the long form
    cargo xtask attack --short       the gate's form: smaller, and fewer rounds
    --only NAME                      this one only (may be repeated)
    --list                           what there is

Each attack is tried on a server of its own. Waiting times are judged beside a control on the same server a moment before, and by the
median of several rounds. Ends with 1 if a promise is broken.
";

/// Every attack, by what it is at.
const ALL: &[&[Attack]] = &[time::ALL, memory::ALL, datagrams::ALL, logins::ALL, text::ALL, crowd::ALL];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let [siege::OPTION, name, address] = args[..] {
        return match (siege::find(name), address.parse::<SocketAddr>()) {
            (Some(siege), Ok(address)) => siege.carry_on(address),
            _ => ExitCode::from(2),
        };
    }
    let (mut form, mut only) = (Form::Long, Vec::new());
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match (*arg, ALL.iter().copied().flatten()) {
            ("--help" | "-h", _) => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            ("--list", mut all) => {
                all.by_ref()
                    .for_each(|attack| println!("{:24} {}", attack.name, attack.attack));
                return ExitCode::SUCCESS;
            }
            ("--short", _) => form = Form::Short,
            ("--only", mut all) => match rest.next().and_then(|name| all.find(|attack| attack.name == *name)) {
                Some(attack) => only.push(attack.name),
                None => return wrong("--only needs the name of an attack"),
            },
            _ => return wrong(&format!("there is no option '{arg}'")),
        }
    }
    run(form, &only)
}

fn wrong(why: &str) -> ExitCode {
    eprintln!("attack: {why}; `cargo xtask attack --help` says what there is");
    ExitCode::from(2)
}

fn run(form: Form, only: &[&str]) -> ExitCode {
    let (mut passed, mut failed) = (0, Vec::new());
    for attack in ALL.iter().copied().flatten() {
        if !only.is_empty() && !only.contains(&attack.name) {
            continue;
        }
        println!(
            "{}\n   attack:  {}\n   promise: {}",
            attack.name, attack.attack, attack.promise
        );
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (attack.run)(form))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(text
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("it panicked")
                .to_owned())
        });
        let seconds = start.elapsed().as_secs_f32();
        match outcome {
            Ok(what) => {
                println!("   outcome: kept: {what} ({seconds:.1} s)");
                passed += 1;
            }
            Err(what) => {
                println!("   outcome: BROKEN: {what} ({seconds:.1} s)");
                failed.push(attack.name);
            }
        }
    }
    println!(
        "{passed} passed, {} failed{}{}",
        failed.len(),
        if failed.is_empty() { "" } else { ": " },
        failed.join(", ")
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
