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

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use clap::Args;
use keyway_cache::server::Watched;
use keyway_cache::{Hot, HotBy, OpenError};

use crate::exit::{self, Failure};
use crate::{commands, place};
use keyway_server::HotAsked;
use keyway_server::overview::{Order, Reading, View};
use screen::{Key, Screen};
use server::Server;
use view::{Hottest, Kind, Looked};

/// The last line of the screen.
const HELP: &str = "q quit  space pause  s sort  k keys by  / filter  esc no filter";

/// Hottest keys on the screen, which has space for other things too, and for scripts.
const ON_SCREEN: usize = 5;
const IN_JSON: usize = 10;

/// Arguments of `keyway top`.
#[derive(Args)]
pub(crate) struct Top {
    #[command(flatten)]
    region: crate::Region,
    /// Also ask this server of the region: ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE")]
    server: Option<String>,
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

/// What is looked at.
struct Region {
    place: String,
    watched: Watched,
    server: Option<Server>,
    asked: HotAsked<'static>,
}

impl Region {
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

    /// The same and all in all, for scripts.
    fn hot_json(&self, now: &Looked, before: &Looked) -> serde_json::Value {
        let list = |since: Option<&_>, by| self.watched.hot_keys(&now.hot, since, by, self.asked.most);
        self.asked.json_of(&now.hot, Some(&before.hot), list)
    }
}

impl Top {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let commands::Which { path, owners } = self.region.place();
        let path = path.unwrap_or_else(|| place::default_path(place::DEFAULT_PORT));
        let file = File::open(&path).map_err(|source| {
            Failure::new(
                exit::NO_REGION,
                OpenError::Io {
                    what: "open",
                    path: path.clone(),
                    source,
                },
            )
        })?;
        let watched = Watched::open(file, &path, &owners).map_err(|why| Failure::new(exit::NO_REGION, why))?;
        let server = self.server.map(|at| Server::connect(&at, watched.identity())).transpose()?;
        let region = Region {
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
fn once(mut region: Region, interval: Duration, json: bool) -> Result<(), Failure> {
    let before = region.look();
    std::thread::sleep(interval);
    let now = region.look();
    let view = View::new(&now.region, &before.region);
    let text = if json {
        let hot = region.hot_json(&now, &before);
        format!("{}\n", view::json(&view, &now, &region.place, Order::default(), hot))
    } else {
        let hot = region.hottest(&now, &before, HotBy::Gets);
        let (lines, _) = view::lines(&view, &now, &hot, &region.place, Order::default(), "");
        format!("{}\n", lines.join("\n"))
    };
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// How the user looks at it.
#[derive(Default)]
struct Looks {
    order: Order,
    keys: Kind,
    filter: String,
    /// the filter is being typed
    types: bool,
    paused: bool,
}

impl Looks {
    /// What a key does. `false`: it ends the program.
    fn press(&mut self, key: Key) -> bool {
        match (key, self.types) {
            (Key::End, _) => return false,
            (Key::Escape, _) => {
                self.filter.clear();
                self.types = false;
            }
            (Key::Enter, true) => self.types = false,
            (Key::Backspace, true) => {
                self.filter.pop();
            }
            (Key::Char(c), true) => self.filter.push(c),
            (Key::Char('q'), false) => return false,
            (Key::Char(' ' | 'p'), false) => self.paused = !self.paused,
            (Key::Char('s'), false) => self.order = view::next(self.order),
            (Key::Char('k'), false) => self.keys = self.keys.next(),
            (Key::Char('/'), false) => self.types = true,
            _ => {}
        }
        true
    }

    fn last_line(&self) -> String {
        if self.types {
            return format!("filter: {}_  (enter: keep, esc: none)", self.filter);
        }
        let mut line = format!("{HELP}  [sorted by {}]", view::name(self.order));
        if !self.filter.is_empty() {
            line.push_str(&format!(" [filter {}]", self.filter));
        }
        if self.paused {
            line.push_str(" [paused]");
        }
        line
    }
}

/// Shows it until the user ends it.
fn live(mut region: Region, interval: Duration) -> Result<(), Failure> {
    let screen = Screen::take()?;
    let mut looks = Looks::default();
    let mut before = region.look();
    let mut now = region.look();
    let mut due = Instant::now() + interval;
    loop {
        let (mut lines, headings) = {
            let view = View::new(&now.region, &before.region);
            let hot = region.hottest(&now, &before, looks.keys.0);
            view::lines(&view, &now, &hot, &region.place, looks.order, &looks.filter)
        };
        let (_, height) = screen.size();
        lines.resize(height.saturating_sub(1), String::new());
        lines.push(looks.last_line());
        screen.show(&lines, &headings)?;
        let left = due.saturating_duration_since(Instant::now());
        for key in screen.keys(left) {
            if !looks.press(key) {
                return Ok(());
            }
        }
        if Instant::now() >= due {
            due = Instant::now() + interval;
            if !looks.paused {
                before = std::mem::replace(&mut now, region.look());
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
        let mut press = |keys: &[Key]| {
            let goes_on = keys.iter().all(|key| looks.press(*key));
            (goes_on, looks.last_line())
        };
        let typed = [Key::Char('/'), Key::Char('q'), Key::Char('x'), Key::Backspace];
        assert_eq!(press(&typed), (true, "filter: q_  (enter: keep, esc: none)".to_owned()));
        let rest = |more: &str| (true, format!("{HELP}  [sorted by {more}"));
        assert_eq!(press(&[Key::Enter]), rest("rate] [filter q]"));
        assert_eq!(
            press(&[Key::Char('s'), Key::Char(' ')]),
            rest("protects] [filter q] [paused]")
        );
        assert_eq!(press(&[Key::Escape, Key::Char(' ')]), rest("protects]"));
        assert!(!press(&[Key::Char('q')]).0 && !press(&[Key::End]).0);
    }
}
