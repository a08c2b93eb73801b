//! Browsers: a few connections that ask for pages one after another, and judge the answers.
//!
//! A page is *right* (status 200, `OK <number>`), *lost* (its worker died: status 502 or 504, the connection ended, or no answer in
//! [`PATIENCE`]), or *wrong* (anything else).

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Users whose pages are asked for.
const USERS: u64 = 200;
/// How long an answer may take before the page counts as lost. When a PHP worker dies after the header of its answer and before the body,
/// nginx neither sends more nor closes the connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came back.
#[derive(Debug, Default)]
pub struct Pages {
    /// the numbers of the pages that were right
    pub numbers: Vec<u64>,
    /// how many were lost with their worker
    pub lost: u64,
    /// the first that were wrong, in words
    pub wrong: Vec<String>,
    /// how many were wrong
    pub wrongs: u64,
}

impl Pages {
    /// How many were answered, or lost.
    pub fn all(&self) -> u64 {
        self.numbers.len() as u64 + self.lost + self.wrongs
    }

    fn add(&mut self, other: Self) {
        self.numbers.extend(other.numbers);
        self.lost += other.lost;
        self.wrongs += other.wrongs;
        self.wrong.extend(other.wrong);
        self.wrong.truncate(20);
    }

    /// Checks the counters: no page was wrong, no number came twice, and every number up to `counter` was given to a page that came
    /// or to one that was lost.
    ///
    /// # Panics
    ///
    /// When that is not so.
    pub fn check(&self, counter: u64) {
        assert!(self.wrongs == 0, "{} wrong pages, such as {:#?}", self.wrongs, self.wrong);
        let different: HashSet<_> = self.numbers.iter().collect();
        assert_eq!(different.len(), self.numbers.len(), "two pages got the same number");
        let right = self.numbers.len() as u64;
        assert!(
            (right..=right + self.lost).contains(&counter),
            "the counter says {counter}: {right} pages came, {} were lost",
            self.lost
        );
    }
}

/// Pages that are asked for while a test does something else.
#[derive(Debug, Default)]
pub struct Progress {
    /// answered so far. PAIRS: nothing.
    done: AtomicU64,
    /// no further pages are wanted. PAIRS: nothing.
    ended: AtomicBool,
}

impl Progress {
    /// Pages answered so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Ends the load.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Waits for so many further pages. `false`: the load ended before.
    pub fn wait_for(&self, further: u64) -> bool {
        let until = self.done() + further;
        while self.done() < until {
            if self.ended.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }
}

/// Asks for pages over so many connections until the load is ended. What `beside` does meanwhile decides that.
pub fn browse(site: SocketAddr, browsers: usize, beside: impl FnOnce(&Progress)) -> Pages {
    let progress = Progress::default();
    let pages = Mutex::new(Pages::default());
    std::thread::scope(|scope| {
        for browser in 0..browsers {
            let (progress, pages) = (&progress, &pages);
            scope.spawn(move || {
                let seen = one_browser(site, browser as u64, progress);
                pages.lock().unwrap_or_else(std::sync::PoisonError::into_inner).add(seen);
            });
        }
        // A test that fails must not leave the browsers at work.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| beside(&progress)));
        progress.end();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
    pages.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Pages a second of one round.
pub fn rate(site: SocketAddr, browsers: usize, round: Duration) -> (f64, Pages) {
    let start = Instant::now();
    let pages = browse(site, browsers, |_| std::thread::sleep(round));
    (pages.all() as f64 / start.elapsed().as_secs_f64(), pages)
}

fn one_browser(site: SocketAddr, number: u64, progress: &Progress) -> Pages {
    let mut pages = Pages::default();
    let mut connection = None;
    let mut user = number * 31;
    while !progress.ended.load(Ordering::Relaxed) {
        user = (user * 13 + 7) % USERS;
        match page(&mut connection, site, user) {
            Ok((200, text)) if text.strip_prefix("OK ").is_some_and(|number| number.parse::<u64>().is_ok()) => {
                pages
                    .numbers
                    .extend(text.strip_prefix("OK ").and_then(|number| number.parse::<u64>().ok()));
            }
            Ok((502 | 504, _)) | Err(_) => pages.lost += 1,
            Ok((status, text)) => {
                pages.wrongs += 1;
                pages.wrong.push(format!("{status}: {text}"));
                pages.wrong.truncate(20);
            }
        }
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    pages
}

/// One page: its status and text. The connection is kept if the server keeps it.
fn page(kept: &mut Option<BufReader<TcpStream>>, site: SocketAddr, user: u64) -> io::Result<(u16, String)> {
    let mut connection = match kept.take() {
        Some(connection) => connection,
        None => {
            let stream = TcpStream::connect_timeout(&site, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            BufReader::new(stream)
        }
    };
    let request = format!("GET /?user={user} HTTP/1.1\r\nHost: site\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes())?;
    let mut line = String::new();
    connection.read_line(&mut line)?;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(|| wrong("no status line"))?;
    let (mut len, mut is_kept) = (None, true);
    loop {
        let mut line = String::new();
        connection.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => len = value.trim().parse().ok(),
            "connection" => is_kept = !value.trim().eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut text = vec![0; len.ok_or_else(|| wrong("no length"))?];
    connection.read_exact(&mut text)?;
    if is_kept {
        *kept = Some(connection);
    }
    Ok((status, String::from_utf8_lossy(&text).into_owned()))
}
