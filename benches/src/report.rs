//! Tables and arguments. Tables are Markdown, so that a run's output is what stands in `docs/performance.md`.

pub use keyway_bench::medians::Samples;

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
