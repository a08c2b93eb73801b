//! Options that `keyway bench` and the lab have in common: how long, how often and where is measured.

use crate::plan::{Cell, Plan};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// How to measure. What is left open is the experiment's to choose.
#[derive(Args, Clone, Debug, Default)]
pub struct Common {
    /// Length of one measurement, seconds
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub seconds: Option<Duration>,
    /// Warm-up before each [default: a fifth of its length]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub warmup: Option<Duration>,
    /// Measurements of each kind on each side
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub repeat: Option<usize>,
    /// Worker threads of each server that is started
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub server_threads: Option<usize>,
    /// CPUs on which servers run
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub server_cpus: Vec<usize>,
    /// CPUs on which the client runs, and the library
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub client_cpus: Vec<usize>,
    /// More options for the Keyway that is started, as `keyway serve` takes them
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    pub server_options: String,
    /// More options for the memcached that is started
    #[arg(long, value_name = "OPTIONS", default_value = "", allow_hyphen_values = true)]
    pub memcached_options: String,
    /// Time without an answer after which a server counts as dead
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub patience: Option<Duration>,
}

impl Common {
    /// A plan for these cells; where the user did not say, with this length, number of repetitions, and threads of each server.
    pub fn plan(&self, program: PathBuf, cells: Vec<Cell>, (length, repetitions, threads): (Duration, usize, usize)) -> Plan {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let (length, repetitions) = (self.seconds.unwrap_or(length), self.repeat.unwrap_or(repetitions));
        let plan = Plan::new(program, cells, length, repetitions);
        Plan {
            warmup: self.warmup.unwrap_or(plan.warmup),
            server_threads: self.server_threads.unwrap_or(threads),
            server_cpus: self.server_cpus.clone(),
            client_cpus: self.client_cpus.clone(),
            server_options: words(&self.server_options),
            memcached_options: words(&self.memcached_options),
            silence_max: self.patience.unwrap_or(plan.silence_max),
            ..plan
        }
    }
}

/// Of connections, or of measurements.
pub fn parse_count(text: &str) -> Result<usize, String> {
    /// One address has no more ports than this.
    const MOST: usize = 65_000;
    match text.parse() {
        Ok(n @ 1..=MOST) => Ok(n),
        _ => Err(format!("it is a number from 1 to {MOST}")),
    }
}

/// At most a day.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    const MOST: f64 = 86_400.0;
    match text.parse::<f64>() {
        Ok(s) if (0.0..=MOST).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err(format!("it is a number of seconds, at most {MOST}")),
    }
}
