//! Medians and tables. Tables are Markdown, so that a run's output is what stands in `docs/performance.md`.

/// Repeats of one measurement.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// None so far.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// One more repeat.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The middle value, or the mean of the two in the middle; NaN of nothing.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// The smallest.
    pub fn low(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest.
    pub fn high(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }

    /// `median (low–high)` with this many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        format!(
            "{:.digits$} ({:.digits$}–{:.digits$})",
            self.median(),
            self.low(),
            self.high()
        )
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

/// One row of a Markdown table.
pub fn row<S: AsRef<str>>(cells: &[S]) -> String {
    let mut line = String::from("|");
    for cell in cells {
        line.push(' ');
        line.push_str(cell.as_ref());
        line.push_str(" |");
    }
    line
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

    /// The value after `--name`.
    pub fn value(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|a| a == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    /// The number after `--name`, or `default`. Anything but a number ends the program.
    pub fn number<N: std::str::FromStr>(&self, name: &str, default: N) -> N {
        match self.value(name).map(str::parse) {
            None => default,
            Some(Ok(number)) => number,
            Some(Err(_)) => {
                say(format!("{name} needs a number; --help explains"));
                std::process::exit(2);
            }
        }
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
    fn a_median_ignores_the_outlier() {
        let odd: Samples = [3.0, 1.0, 1000.0].into_iter().collect();
        assert_eq!(odd.median(), 3.0);
        let even: Samples = [4.0, 2.0].into_iter().collect();
        assert_eq!(even.median(), 3.0);
        assert_eq!(odd.show(0), "3 (1–1000)");
        assert!(Samples::default().median().is_nan());
    }

    #[test]
    fn a_table_is_markdown() {
        assert_eq!(head(&["a", "b"]), "| a | b |\n| --- | --- |");
    }

    #[test]
    fn options_are_found_by_name() {
        let args = Args(["--repeats", "5", "--quick"].map(String::from).to_vec());
        assert_eq!(args.number("--repeats", 3), 5);
        assert_eq!(args.number("--seconds", 2.5), 2.5);
        assert!(args.has("--quick") && !args.has("--slow"));
    }
}
