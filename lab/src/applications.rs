//! Pages a second of web applications, with memcached, with Keyway in memcached's place, and with Keyway's library.
//!
//! All sites run at the same time, and one of them is asked for pages; the others are idle. Sides of one application alternate.

use applications::load::{Pages, rate};
use applications::{CacheOf, Site};
use harness::{Kind, ServeOptions, Server};
use keyway_bench::medians::Samples;
use std::path::Path;
use std::time::Duration;

/// Pages that a worker makes before it is replaced: none is, as in most sites.
const RECYCLED: u64 = 1_000_000_000;
/// How long a site is asked for pages before it is measured.
const WARMUP: Duration = Duration::from_secs(1);

/// Measures every application with each of its caches, `repeat` rounds of this length, and gives a table; each ratio is to the first row of the
/// application. `target` is where Django is kept.
///
/// # Errors
///
/// Something is not installed, or a page was wrong.
pub fn measure(target: &Path, browsers: usize, round: Duration, repeat: usize) -> Result<String, String> {
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
    let mut rates = [const { Samples::new() }; 6];
    for _ in 0..repeat {
        for (rates, (application, _, site)) in rates.iter_mut().zip(&sites) {
            rates.push(ask(site, application, round)?);
        }
    }
    let mut text = String::from(
        "| application | cache | pages a second: median (lowest to highest) | times memcached |\n|---|---|---|---|\n",
    );
    for ((application, cache, _), (at, pages)) in sites.iter().zip(rates.iter().enumerate()) {
        // Of each application memcached comes first.
        let ratio = pages.median() / rates[at / 3 * 3].median();
        text.push_str(&format!("| {application} | {cache} | {} | {ratio:.2} |\n", pages.show(0)));
    }
    Ok(text)
}

/// Nothing dies here, so no page may be lost either.
fn is_right(pages: &Pages) -> Result<(), String> {
    match pages.lost + pages.wrongs {
        0 => Ok(()),
        bad => Err(format!("{bad} of {} pages failed: {:#?}", pages.all(), pages.wrong)),
    }
}
