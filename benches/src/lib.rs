//! What the benchmarks share beside `keyway-bench`: sides that are measured in turn, regions with items, Markdown tables and arguments.
//!
//! Nothing here measures by itself; `../*.rs` hold the measurements, one question a file.

use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::workload::{Key, Rng, Zipf, key, mix};
use keyway_cache::{Cache, GateState, Options, Place, Session};
use std::hint::black_box;
use std::time::Instant;

/// Takes a value as used, so that getting it is not optimised away.
///
/// Its place and its length one by one. The two words of a `Vec`'s slice may be read by one load, and a load of more than the last store
/// has written (the length) waits until that store has left the processor's store queue: 10 ns and more that are
/// part of no get.
#[inline(always)]
pub fn used(value: &[u8]) {
    black_box(value.as_ptr());
    black_box(value.len());
}

/// One run of a side; gives its figure.
pub type Turn<'a> = Box<dyn FnMut() -> f64 + 'a>;

/// Works on each key: nanoseconds a key.
pub fn each<'a>(keys: &'a [Key], mut work: impl FnMut(&Key) + 'a) -> Turn<'a> {
    Box::new(move || ns_each(keys.len(), || black_box(keys).iter().for_each(&mut work)))
}

/// The same, once before it is timed: so the items are in the caches as far as they fit, where the side before has left other ones.
pub fn warm<'a>(keys: &'a [Key], mut work: impl FnMut(&Key) + 'a) -> Turn<'a> {
    Box::new(move || {
        keys.iter().for_each(&mut work);
        ns_each(keys.len(), || black_box(keys).iter().for_each(&mut work))
    })
}

/// Nanoseconds for each of so many.
pub fn ns_each(count: usize, work: impl FnOnce()) -> f64 {
    let since = Instant::now();
    work();
    since.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Runs the sides in turn, so often and a round before that warms up; of each its figures, and how many times the first side's of the
/// same round they are.
pub fn in_turn(runs: usize, sides: &mut [(&str, Turn<'_>)]) -> Vec<[Samples; 2]> {
    let mut all = vec![<[Samples; 2]>::default(); sides.len()];
    for round in 0..=runs {
        let mut first = None;
        for ((_, side), [figures, ratios]) in sides.iter_mut().zip(&mut all) {
            let figure = side();
            if round == 0 {
                continue;
            }
            figures.push(figure);
            ratios.push(figure / *first.get_or_insert(figure));
        }
    }
    all
}

/// Runs this process on the last of its CPUs: interrupts and the default of all other programs are on the first.
pub fn on_last_cpu() {
    let cpus = machine::allowed_cpus().expect("the kernel says which");
    machine::pin(&cpus[cpus.len() - 1..]).expect("this process may choose its CPU");
}

/// A region in anonymous memory.
pub fn region(options: &Options) -> Cache {
    Cache::open(&Place::Memfd, options).expect("a region in anonymous memory")
}

/// Stores items 0, 1, 2 and so on, none of which is evicted.
pub fn fill(cache: &Cache, items: u64, value: &[u8]) -> Session {
    let mut session = cache.session().expect("a session");
    for key in (0..items).map(key) {
        session.set(&key, value, 0).expect("a set is not refused");
    }
    assert_eq!(cache.counters().evictions, 0, "all items fit");
    session
}

/// The numbers of the items that `count` requests fall on; all alike, or as YCSB's scrambled zipfian has it (exponent 0.99).
pub fn indices(items: u64, uniform: bool, count: usize, seed: u64) -> Vec<u64> {
    let (mut rng, zipf) = (Rng::new(seed), Zipf::new(items));
    let draw = |_| {
        if uniform {
            rng.below(items)
        } else {
            mix(zipf.rank(&mut rng)) % items
        }
    };
    (0..count).map(draw).collect()
}

/// Their keys.
pub fn keys(items: u64, uniform: bool, count: usize, seed: u64) -> Vec<Key> {
    indices(items, uniform, count, seed).into_iter().map(key).collect()
}

/// As a table names it.
pub fn popularity(uniform: bool) -> &'static str {
    if uniform { "uniform" } else { "zipf 0.99" }
}

/// One line about where the figures come from, and the gate. The gate is on where there are protection keys, unless `KEYWAY_GATE=off` is
/// in the environment. With `KEYWAY_GATE=on` a benchmark without a gate ends here, because its figures would be taken for those of one.
pub fn describe() {
    let gate = region(&Options::new().memory(2 << 20)).info().gate;
    if std::env::var("KEYWAY_GATE").is_ok_and(|asked| asked == "on") && gate != GateState::On {
        say(format!(
            "KEYWAY_GATE=on, but the gate is {gate}: measure on a machine with protection keys"
        ));
        std::process::exit(2);
    }
    say(format!("{}, gate {gate}", machine::describe()));
}

/// One row of a Markdown table.
pub fn row<S: AsRef<str>>(cells: &[S]) -> String {
    cells
        .iter()
        .fold("|".to_owned(), |line, cell| format!("{line} {} |", cell.as_ref()))
}

/// The first two lines of a Markdown table.
pub fn head(columns: &[&str]) -> String {
    format!("{}\n{}", row(columns), row(&vec!["---"; columns.len()]))
}

/// Prints a line at once: benchmarks take minutes, and say where they are.
#[allow(clippy::print_stdout, reason = "the one place where benchmarks print")]
pub fn say(line: impl AsRef<str>) {
    println!("{}", line.as_ref());
}

/// Arguments of a plain benchmark program: `--name value` pairs and flags, whatever it names.
#[derive(Clone, Debug)]
pub struct Args(Vec<String>);

impl Args {
    /// The process's, without the `--bench` that cargo adds. With `--help`, prints `help` and exits.
    pub fn parse(help: &str) -> Self {
        let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
        if args.iter().any(|a| a == "--help" || a == "-h") {
            say(help);
            std::process::exit(0);
        }
        Self(args)
    }

    /// The role of a process that another one of the same program started: what follows the word `role`.
    pub fn role(&self) -> Option<Vec<&str>> {
        let (first, rest) = self.0.split_first()?;
        (first == "role").then(|| rest.iter().map(String::as_str).collect())
    }

    /// The value after `--name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|a| a == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// The number after `--name`, or `default`. Anything but a number ends the program.
    pub fn number<N: std::str::FromStr + Copy>(&self, name: &str, default: N) -> N {
        self.numbers(name, &[default])[0]
    }

    /// The numbers after `--name`, between commas.
    pub fn numbers<N: std::str::FromStr + Copy>(&self, name: &str, default: &[N]) -> Vec<N> {
        let read = |text: &str| text.split(',').map(|n| n.parse().ok()).collect::<Option<Vec<N>>>();
        self.value(name).map_or_else(
            || default.to_vec(),
            |text| {
                read(text).unwrap_or_else(|| {
                    say(format!("{name} needs a number; --help explains"));
                    std::process::exit(2)
                })
            },
        )
    }

    /// Whether the flag is there.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|a| a == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_markdown() {
        assert_eq!(head(&["a", "b"]), "| a | b |\n| --- | --- |");
    }

    #[test]
    fn options_are_found_by_name() {
        let args = Args(["--repeats", "5", "--sizes", "1,2", "--quick"].map(String::from).to_vec());
        assert_eq!(args.number("--repeats", 3), 5);
        assert_eq!(args.numbers("--sizes", &[7]), [1, 2]);
        assert_eq!(args.number("--seconds", 2.5), 2.5);
        assert!(args.has("--quick") && !args.has("--slow"));
        assert_eq!(args.role(), None);
    }

    #[test]
    fn a_seed_gives_the_same_requests_again() {
        for uniform in [true, false] {
            assert_eq!(indices(1000, uniform, 100, 7), indices(1000, uniform, 100, 7));
            assert_ne!(indices(1000, uniform, 100, 7), indices(1000, uniform, 100, 8));
            assert!(indices(1000, uniform, 10_000, 1).iter().all(|&i| i < 1000));
        }
    }

    #[test]
    fn sides_take_turns_and_are_compared_with_the_first_of_their_round() {
        let clock = std::cell::Cell::new(0.0);
        let tick = |times: f64| {
            clock.set(clock.get() + 1.0);
            clock.get() * times
        };
        let mut sides: [(&str, Turn<'_>); 2] = [("a", Box::new(|| tick(1.0))), ("b", Box::new(|| tick(3.0)))];
        let [[a, none], [b, ratios]] = &in_turn(2, &mut sides)[..] else {
            unreachable!()
        };
        assert_eq!([a.low(), a.high(), none.median()], [3.0, 5.0, 1.0]);
        assert_eq!([b.low(), b.high()], [12.0, 18.0]);
        assert_eq!([ratios.low(), ratios.high()], [3.6, 4.0]);
    }
}
