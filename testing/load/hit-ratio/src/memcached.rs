//! A real memcached on a Unix socket, asked for many keys at a time.

use crate::Contender;
use crate::trace::Request;
use harness::Wire;
use keyway_proto::client::{self, Answer};
use keyway_proto::{Command, Store, StoreVerb};
use std::collections::HashSet;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{self, Child, Stdio};
use std::time::{Duration, Instant};

/// How long it may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(20);
/// Requests between two round trips.
const BATCH: usize = 256;

/// A memcached that ends with this handle.
pub struct Memcached {
    child: Child,
    folder: PathBuf,
    wire: Wire,
    value: Vec<u8>,
}

impl Memcached {
    /// Starts one with so many MB. `None`: it is not installed.
    ///
    /// # Errors
    ///
    /// It does not start.
    pub fn start(memory_mib: u64) -> io::Result<Option<Self>> {
        let Some(program) = path() else { return Ok(None) };
        let folder = std::env::temp_dir().join(format!("keyway-hit-ratio-{}-{memory_mib}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let socket = folder.join("socket");
        let mut child = process::Command::new(program)
            .args(["-m", &memory_mib.to_string(), "-t", "1", "-U", "0", "-u", "root", "-s"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let since = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(e) => {
                    if child.try_wait()?.is_some() || since.elapsed() > START_MAX {
                        let _ = child.kill();
                        let _ = child.wait();
                        return Err(e);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        Ok(Some(Self {
            child,
            folder,
            wire: Wire::from_unix(stream)?,
            value: vec![b'v'; 1 << 20],
        }))
    }

    /// A number of its `stats`.
    ///
    /// # Errors
    ///
    /// The connection broke.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        let mut request = Vec::new();
        client::other(&mut request, Command::Stats, []);
        self.wire.send(&request)?;
        let mut found = 0;
        loop {
            let number = self.wire.receive(|answer| match answer {
                Answer::Stat { name: told, value } if *told == name.as_bytes() => Some(String::from_utf8_lossy(value).parse()),
                Answer::Stat { .. } => Some(Ok(found)),
                _ => None,
            })?;
            match number {
                Some(number) => found = number.map_err(io::Error::other)?,
                None => return Ok(found),
            }
        }
    }

    /// Sends what is in `out`, and gets these keys in one request; which were there.
    fn get(&mut self, requests: &[Request], out: &mut Vec<u8>) -> io::Result<HashSet<Vec<u8>>> {
        let mut found = HashSet::new();
        if requests.is_empty() {
            self.wire.send(out)?;
            return Ok(found);
        }
        let keys: Vec<Vec<u8>> = requests
            .iter()
            .map(|request| {
                let mut key = Vec::new();
                request.key(&mut key);
                key
            })
            .collect();
        client::get(out, false, keys.iter().map(Vec::as_slice));
        self.wire.send(out)?;
        loop {
            let key = self.wire.receive(|answer| match answer {
                Answer::Value { key, .. } => Ok(Some(key.to_vec())),
                Answer::End => Ok(None),
                other => Err(io::Error::other(format!("{other:?}"))),
            })??;
            match key {
                Some(key) => found.insert(key),
                None => return Ok(found),
            };
        }
    }
}

impl Contender for Memcached {
    /// A key that is asked for again within a batch is got again behind the sets of that batch, as if the batch had been sent
    /// request by request.
    fn replay(&mut self, requests: &[Request]) -> io::Result<u64> {
        let mut misses = 0;
        let mut key = Vec::new();
        for batch in requests.chunks(BATCH) {
            let mut known = HashSet::new();
            let (first, again): (Vec<Request>, Vec<Request>) = batch.iter().partition(|r| known.insert(r.id));
            let found = self.get(&first, &mut Vec::new())?;
            let mut out = Vec::new();
            for request in &first {
                request.key(&mut key);
                if !found.contains(&key) {
                    misses += 1;
                    let store = Store {
                        verb: StoreVerb::Set,
                        key: &key,
                        flags: 0,
                        exptime: 0,
                        cas: 0,
                        noreply: true,
                        value: &self.value[..request.value_len],
                    };
                    client::store(&mut out, &store);
                }
            }
            let again_found = self.get(&again, &mut out)?;
            for request in &again {
                request.key(&mut key);
                misses += u64::from(!again_found.contains(&key));
            }
        }
        Ok(misses)
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Where it is: `KEYWAY_MEMCACHED`, or on the PATH, or where Debian puts it.
fn path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_MEMCACHED") {
        return Some(PathBuf::from(named)).filter(|p| p.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/local/bin")]);
    folders.map(|f| f.join("memcached")).find(|p| p.is_file())
}
