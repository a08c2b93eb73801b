//! Pages a second of web applications, with memcached, with Keyway in memcached's place, and with Keyway's library.
//!
//! All sites run at the same time, and one of them is asked for pages; the others are idle. Sides of one application alternate.

use applications::load::{Pages, rate};
use applications::{CacheOf, Site};
use harness::{Kind, ServeOptions, Server};
use std::path::Path;
use std::time::Duration;

/// Pages that a worker makes before it is replaced: none is, as in most sites.
const RECYCLED: u64 = 1_000_000_000;
/// How long a site is asked for pages before it is measured.
const WARMUP: Duration = Duration::from_secs(1);

/// One application with one cache.
#[derive(Clone, Debug)]
pub struct Row {
    /// the application
    pub application: &'static str,
    /// its cache, and the way to it
    pub cache: &'static str,
    /// pages a second, round by round
    pub rates: Vec<f64>,
}

impl Row {
    /// The middle round.
    pub fn median(&self) -> f64 {
        let mut sorted = self.rates.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
    }
}

/// Measures every application with each of its caches, `repeat` rounds of this length. `target` is where Django is kept.
///
/// # Errors
///
/// Something is not installed, or a page was wrong.
pub fn measure(target: &Path, browsers: usize, round: Duration, repeat: usize) -> Result<Vec<Row>, String> {
    if harness::memcached_binary().is_none() {
        return Err("memcached is not installed".to_owned());
    }
    let memcached = Server::start(Kind::Memcached, &ServeOptions::default());
    let keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let (old, new) = (memcached.address(), keyway.address());
    let sites = [
        ("PHP", "memcached", Site::php(CacheOf::Server(old), RECYCLED)?),
        ("PHP", "Keyway's socket", Site::php(CacheOf::Server(new), RECYCLED)?),
        ("PHP", "Keyway, drop-in", Site::php(CacheOf::DropIn(new), RECYCLED)?),
        ("Django", "memcached", Site::django(target, CacheOf::Server(old), RECYCLED)?),
        (
            "Django",
            "Keyway's socket",
            Site::django(target, CacheOf::Server(new), RECYCLED)?,
        ),
        (
            "Django",
            "Keyway, library",
            Site::django(target, CacheOf::Region(keyway.region()), RECYCLED)?,
        ),
    ];
    let ask = |site: &Site, name: &str, time| {
        let (rate, pages) = rate(site.address(), browsers, time);
        is_right(&pages)
            .map(|()| rate)
            .map_err(|why| format!("{name}: {why}\n{}", site.log()))
    };
    for (application, _, site) in &sites {
        ask(site, application, WARMUP)?;
    }
    let mut rows = sites.each_ref().map(|(application, cache, _)| Row {
        application,
        cache,
        rates: Vec::new(),
    });
    for _ in 0..repeat {
        for (row, (application, _, site)) in rows.iter_mut().zip(&sites) {
            row.rates.push(ask(site, application, round)?);
        }
    }
    Ok(rows.to_vec())
}

/// Nothing dies here, so no page may be lost either.
fn is_right(pages: &Pages) -> Result<(), String> {
    match pages.lost + pages.wrongs {
        0 => Ok(()),
        bad => Err(format!("{bad} of {} pages failed: {:#?}", pages.all(), pages.wrong)),
    }
}

/// The rows as a table; each ratio is to the first row of the application.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| application | cache | pages a second: median (lowest to highest) | times memcached |\n|---|---|---|---|\n",
    );
    for row in rows {
        let first = rows.iter().find(|other| other.application == row.application);
        let ratio = first.map_or(1.0, |first| row.median() / first.median());
        let (low, high) = row
            .rates
            .iter()
            .fold((f64::MAX, 0.0_f64), |(low, high), rate| (low.min(*rate), high.max(*rate)));
        text.push_str(&format!(
            "| {} | {} | {:.0} ({low:.0} to {high:.0}) | {ratio:.2} |\n",
            row.application,
            row.cache,
            row.median()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_same_applications_first_row() {
        let row = |application, cache, rates: &[f64]| Row {
            application,
            cache,
            rates: rates.to_vec(),
        };
        let rows = [
            row("PHP", "memcached", &[100.0, 300.0, 200.0]),
            row("PHP", "drop-in", &[500.0, 400.0, 300.0]),
            row("Django", "memcached", &[50.0]),
        ];
        let text = table(&rows);
        for line in [
            "| PHP | memcached | 200 (100 to 300) | 1.00 |",
            "| PHP | drop-in | 400 (300 to 500) | 2.00 |",
            "| Django | memcached | 50 (50 to 50) | 1.00 |",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
