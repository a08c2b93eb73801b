//! What `keyway top`, `keyway stats` and `keyway doctor` ask a server of the region.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::unistd::geteuid;

use crate::exit::Failure;
use crate::wire::{Access, Client};

/// A server that is asked again and again.
pub(crate) struct Server {
    client: Client,
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

/// Where this process finds the region of the server at `place`: the file, if this user owns it, and otherwise the socket at which the
/// server hands it out, if it has one.
pub(crate) fn region_of(place: &str, access: &Access) -> Result<PathBuf, Failure> {
    let mut client = Client::connect(place, access)?;
    let mut says = client.stats("stats settings\r\n").map_err(|why| client.failure(why))?;
    let Some(region) = says.remove("keyway_region") else {
        return Err(client.failure(NO_REGION_SAID));
    };
    let named = says.remove("memory_file").unwrap_or_default();
    let file = std::fs::metadata(&named).ok();
    let file = file.filter(|meta| format!("{}:{}", meta.dev(), meta.ino()) == region);
    let socket = says.remove("keyway_region_socket").map(PathBuf::from);
    let socket = socket.filter(|socket| socket.exists());
    match (file, socket) {
        (Some(meta), _) if meta.uid() == geteuid().as_raw() => Ok(named.into()),
        (_, Some(socket)) => Ok(socket),
        (Some(_), None) => Ok(named.into()),
        (None, None) => Err(client.failure(format_args!(
            "its region, {named}, is no file here, and the server hands it out at no socket that is here: start it with --region-socket"
        ))),
    }
}

const NO_REGION_SAID: &str = "it does not say which region it serves: it is no server of Keyway, or an older one";

impl Server {
    /// Connects to the server at this place, which must serve this region.
    pub(crate) fn connect(place: &str, access: &Access, region: (u64, u64)) -> Result<Self, Failure> {
        let mut server = Self {
            client: Client::connect(place, access)?,
            region,
        };
        server.ask().map_err(|why| server.client.failure(why))?;
        Ok(server)
    }

    pub(crate) fn ask(&mut self) -> Result<Answered, String> {
        let said = self.stats("stats\r\n")?;
        let region = self.stats("stats settings\r\n")?.remove("keyway_region");
        let own = format!("{}:{}", self.region.0, self.region.1);
        if region.as_deref() != Some(&own) {
            return Err(match region {
                Some(other) => format!(
                    "it serves another region (device:inode {other}) than this one ({own}): name its own with --region, or leave --region out"
                ),
                None => NO_REGION_SAID.to_owned(),
            });
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
        self.client.stats(request)
    }
}
