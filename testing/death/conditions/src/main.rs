//! The program that the processes of a cell are: started by the test, told by its arguments which one it is.

mod wall_clock;

use conditions::process::{self, Job};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(job) = Job::from_args(&args) else {
        return ExitCode::from(2);
    };
    ExitCode::from(u8::try_from(process::run(&job, wall_clock::set_off)).unwrap_or(1))
}
