//! What `keyway top`, `keyway stats` and `keyway doctor` ask a server of the region.

use std::collections::BTreeMap;

use crate::exit::{self, Failure};
use crate::ping::{self, Wire};

/// Longest answer, bytes.
const ANSWER_MAX: usize = 1 << 20;

/// A server that is asked again and again.
pub(crate) struct Server {
    place: String,
    wire: Box<dyn Wire>,
    /// device and inode of the region
    region: (u64, u64),
}

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) pid: u64,
    pub(crate) connections: u64,
    pub(crate) threads: u64,
    pub(crate) uptime_s: u64,
}

impl Server {
    /// Connects to the server at this place, which must serve this region.
    pub(crate) fn connect(place: &str, region: (u64, u64)) -> Result<Self, Failure> {
        let mut server = Self {
            place: place.to_owned(),
            wire: ping::connect_to(place)?,
            region,
        };
        server
            .ask()
            .map_err(|why| Failure::new(exit::NO, format_args!("{place}: {why}")))?;
        Ok(server)
    }

    pub(crate) fn ask(&mut self) -> Result<Answered, String> {
        let said = self.stats("stats\r\n")?;
        let region = self.stats("stats settings\r\n")?.remove("keyway_region");
        let own = format!("{}:{}", self.region.0, self.region.1);
        if region.as_deref() != Some(&own) {
            return Err(format!("{} serves another region", self.place));
        }
        let of = |name: &str| said.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        Ok(Answered {
            pid: of("pid"),
            connections: of("curr_connections"),
            threads: of("threads"),
            uptime_s: of("uptime"),
        })
    }

    /// The lines of an answer to `stats`, by name.
    pub(crate) fn stats(&mut self, request: &str) -> Result<BTreeMap<String, String>, String> {
        self.wire.write_all(request.as_bytes()).map_err(ping::failed)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"END\r\n") {
            if !answer.is_empty() && !answer.starts_with(b"STAT ") && answer.ends_with(b"\r\n") {
                return Err(format!("it answers {}", answer.trim_ascii_end().escape_ascii()));
            }
            if answer.len() > ANSWER_MAX {
                return Err("its answer does not end".to_owned());
            }
            ping::more(&mut *self.wire, &mut answer)?;
        }
        let text = String::from_utf8_lossy(&answer);
        let lines = text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}
