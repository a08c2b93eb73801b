//! `keyway top`: a region in use, live. It is mapped for reading only, so what is looked at is neither changed nor slowed down, and no
//! server is needed.
//!
//! | file | holds |
//! |---|---|
//! | `view` | what is shown |
//! | `screen` | the terminal |
//! | `server` | what a server adds, if one is asked |

mod screen;
pub(crate) mod server;
mod view;

use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use keyway_cache::server::Watched;
use keyway_cache::{Hot, HotBy, HotCounts};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, HorizontalAlignment, Layout};
use ratatui::text::Text;
use ratatui::widgets::Widget;

use crate::exit::Failure;
use crate::wire::Access;
use crate::{commands, place, terminal};
use keyway_server::HotAsked;
use keyway_server::overview::{Order, Reading, View};
use screen::{Received, Screen};
use server::{Answered, Server};
use view::Page;

/// The last line of the screen.
const HELP: &str = "? help  q quit  space pause  s sort  k keys by  / filter  arrows scroll";

/// What `?` shows.
const TERMS: &str = "\
keys
  ?  h          this help; the same key, or esc, ends it
  q  Ctrl-C     quit
  Ctrl-Z        stop, as any program: `fg` continues
  space  p      pause, and go on
  s             sort processes by: rate, protects, pid, command
  k             hottest keys by: gets, sets, bytes given out
  /             show only what contains a text; esc: show all
  arrows, page up and down, home
                scroll the processes

terms
  door          how a program gets to the region: library, or text, meta,
                binary and udp of a server
  p50, p99      half, 99 % of the calls took at most this long, inside the
                program or server: without the network
  ~             an estimate, from a sample
  at least, at most
                the truth is outside about once in twenty times
  in call       threads in a call that may change items
  protects      segments that calls in progress keep from being evicted
  fenced        sessions of a process that seems dead
  admission pool, main pool
                segments of new items, and of items that were read again

A line that ends with > is cut: the terminal is too narrow for all of it.";

/// Processes further on a page up or down.
const PAGE: usize = 10;

/// Hottest keys on the screen, which has space for other things too, and for scripts.
const ON_SCREEN: usize = 5;
const IN_JSON: usize = 10;

/// Arguments of `keyway top`.
#[derive(Args)]
pub(crate) struct Top {
    #[command(flatten)]
    region: crate::Region,
    /// Also ask this server, and look at its region if none is named: [tls://]ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE")]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Print what happens in one interval, and end
    #[arg(long)]
    once: bool,
    /// Print it as a JSON object
    #[arg(long, requires = "once")]
    json: bool,
    /// Show hashes in the place of keys
    #[arg(long)]
    redact: bool,
}

/// A look at a region.
struct Looked {
    region: Reading,
    hot: HotCounts,
    /// what the server says, if one is asked
    server: Option<Result<Answered, String>>,
}

/// By what keys are hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HotKind(HotBy);

/// The hottest keys between two looks, each as it is shown.
struct Hottest {
    by: HotBy,
    seconds: f64,
    keys: Vec<(String, Hot)>,
}

/// What is looked at.
struct Source {
    place: String,
    watched: Watched,
    server: Option<Server>,
    asked: HotAsked<'static>,
}

impl Source {
    fn look(&mut self) -> Looked {
        let server = self.server.as_mut().map(Server::ask);
        Looked {
            region: Reading::from(self.watched.look()),
            hot: self.watched.hot_counts(),
            server,
        }
    }

    /// The hottest keys between two looks.
    fn hottest(&self, now: &Looked, before: &Looked, by: HotBy) -> Hottest {
        let since = Some(&before.hot);
        let row = |hot: Hot| (self.asked.shown(&hot), hot);
        let keys = self.watched.hot_keys(&now.hot, since, by, self.asked.most);
        Hottest {
            by,
            seconds: now.hot.after(&before.hot).as_secs_f64(),
            keys: keys.into_iter().map(row).collect(),
        }
    }

    /// The hottest keys between two looks, and since the region was made, for scripts.
    fn hot_json(&self, now: &Looked, before: &Looked) -> serde_json::Value {
        let list = |since: Option<&_>, by| self.watched.hot_keys(&now.hot, since, by, self.asked.most);
        self.asked.json_of(&now.hot, Some(&before.hot), list)
    }
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let commands::Which { path, owners } = self.region.place_of(self.server.as_deref(), &self.access)?;
        let (_, watched) = place::open_to_look(&path, &owners)?;
        let server = self
            .server
            .map(|at| Server::connect(&at, &self.access, watched.identity()))
            .transpose()?;
        let region = Source {
            place: path.display().to_string(),
            watched,
            server,
            asked: HotAsked {
                most: if self.json { IN_JSON } else { ON_SCREEN },
                separator: None,
                redacted: self.redact,
            },
        };
        let interval = Duration::from_secs(self.interval.into());
        if self.once {
            once(region, interval, self.json)
        } else {
            live(region, interval)
        }
    }
}

/// Prints what happens in one interval.
fn once(mut region: Source, interval: Duration, json: bool) -> Result<(), Failure> {
    let before = region.look();
    std::thread::sleep(interval);
    let now = region.look();
    let view = View::new(&now.region, &before.region);
    let text = if json {
        let hot = region.hot_json(&now, &before);
        format!("{}\n", view::json(&view, &now, &region.place, Order::default(), hot))
    } else {
        let hot = region.hottest(&now, &before, HotBy::Gets);
        Page::new(&view, &now, &hot, &region.place, Order::default(), "").text(terminal::columns())
    };
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// How the user looks at it.
#[derive(Default)]
struct Looks {
    order: Order,
    keys: HotKind,
    filter: String,
    /// the filter is being typed
    types: bool,
    paused: bool,
    /// the help is shown instead
    helps: bool,
    /// the first process that is shown
    first: usize,
}

impl Looks {
    /// What a key does. `false`: it ends the program.
    fn press(&mut self, key: KeyCode) -> bool {
        match (key, self.types) {
            (KeyCode::Esc, _) if self.helps => self.helps = false,
            (KeyCode::Esc, _) => {
                self.filter.clear();
                self.types = false;
            }
            (KeyCode::Enter, true) => self.types = false,
            (KeyCode::Backspace, true) => {
                self.filter.pop();
            }
            (KeyCode::Char(c), true) => self.filter.push(c),
            (KeyCode::Char('q'), false) => return false,
            (KeyCode::Char('?' | 'h'), false) => self.helps = !self.helps,
            (KeyCode::Char(' ' | 'p'), false) => self.paused = !self.paused,
            (KeyCode::Char('s'), false) => self.order = view::next(self.order),
            (KeyCode::Char('k'), false) => self.keys = self.keys.next(),
            (KeyCode::Char('/'), false) => self.types = true,
            (KeyCode::Up, false) => self.first = self.first.saturating_sub(1),
            (KeyCode::Down, false) => self.first += 1,
            (KeyCode::PageUp, false) => self.first = self.first.saturating_sub(PAGE),
            (KeyCode::PageDown, false) => self.first += PAGE,
            (KeyCode::Home, false) => self.first = 0,
            _ => {}
        }
        true
    }

    fn draw(&mut self, page: &Page, frame: &mut Frame<'_>) {
        let count = page.processes.len();
        self.first = self.first.min(count.saturating_sub(1));
        let [area, last] = Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let width = usize::from(area.width);
        match self.helps {
            true => {
                let lines = TERMS
                    .lines()
                    .map(|line| view::fitting(line, width, HorizontalAlignment::Left));
                Text::from_iter(lines).render(area, frame.buffer_mut());
            }
            false => page.draw(area, frame.buffer_mut(), self.first),
        }
        let line = view::fitting(&self.last_line(count), width, HorizontalAlignment::Left);
        line.as_str().render(last, frame.buffer_mut());
    }

    fn last_line(&self, processes: usize) -> String {
        if self.types {
            return format!("filter: {}_  (enter: keep, esc: none)", self.filter);
        }
        let mut line = String::new();
        if self.paused {
            line.push_str("[paused] ");
        }
        if !self.filter.is_empty() {
            line.push_str(&format!("[filter {}] ", self.filter));
        }
        if self.first > 0 {
            line.push_str(&format!("[process {} of {processes}] ", self.first + 1));
        }
        line + &format!("[sorted by {}]  {HELP}", view::name(self.order))
    }
}

/// Shows it until the user ends it.
fn live(mut region: Source, interval: Duration) -> Result<(), Failure> {
    let mut screen = Screen::take()?;
    let mut looks = Looks::default();
    // Before the second look no rate is known.
    let mut before = None;
    let mut now = region.look();
    let mut due = Instant::now() + interval;
    loop {
        let page = {
            let before = before.as_ref().unwrap_or(&now);
            let view = View::new(&now.region, &before.region);
            let hot = region.hottest(&now, before, looks.keys.0);
            Page::new(&view, &now, &hot, &region.place, looks.order, &looks.filter)
        };
        screen.show(|frame| looks.draw(&page, frame))?;
        match screen.received(due) {
            Received::Key(key) if !looks.press(key.code) => return Ok(()),
            Received::End => return Ok(()),
            Received::Stop => screen.stop()?,
            Received::Key(_) | Received::Nothing => {}
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            if !looks.paused {
                let look = region.look();
                before = Some(std::mem::replace(&mut now, look));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_change_what_is_shown() {
        let mut looks = Looks::default();
        let mut press = |keys: &[KeyCode]| {
            let goes_on = keys.iter().all(|key| looks.press(*key));
            (goes_on, looks.last_line(30))
        };
        let char = KeyCode::Char;
        let typed = [char('/'), char('q'), char('x'), KeyCode::Backspace];
        assert_eq!(press(&typed), (true, "filter: q_  (enter: keep, esc: none)".to_owned()));
        let rest = |said: &str| (true, format!("{said}]  {HELP}"));
        assert_eq!(press(&[KeyCode::Enter]), rest("[filter q] [sorted by rate"));
        assert_eq!(
            press(&[char('s'), char(' ')]),
            rest("[paused] [filter q] [sorted by protects")
        );
        assert_eq!(press(&[KeyCode::Esc, char(' ')]), rest("[sorted by protects"));
        assert_eq!(
            press(&[KeyCode::PageDown, KeyCode::Down, KeyCode::Down, KeyCode::Up]),
            rest("[process 12 of 30] [sorted by protects")
        );
        assert_eq!(press(&[KeyCode::Home]), rest("[sorted by protects"));
        assert!(!press(&[char('q')]).0);
    }
}
