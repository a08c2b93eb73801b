//! A real memcached on a Unix socket, asked for many keys at a time.

use crate::Contender;
use crate::trace::Request;
use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(20);
/// Requests between two round trips.
const BATCH: usize = 256;

/// A memcached that ends with this handle.
pub struct Memcached {
    child: Child,
    folder: PathBuf,
    reader: BufReader<UnixStream>,
    writer: UnixStream,
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
        let mut child = Command::new(program)
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
            reader: BufReader::with_capacity(1 << 16, stream.try_clone()?),
            writer: stream,
            value: vec![b'v'; 1 << 20],
        }))
    }

    /// A number of its `stats`.
    ///
    /// # Errors
    ///
    /// The connection broke.
    pub fn stat(&mut self, name: &str) -> io::Result<u64> {
        self.writer.write_all(b"stats\r\n")?;
        let mut found = 0;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["STAT", stat, value] if stat == name => found = value.parse().map_err(io::Error::other)?,
                ["STAT", ..] => {}
                _ => return Ok(found),
            }
        }
    }

    /// Gets these keys in one request; whether each was there.
    fn get(&mut self, requests: &[Request], out: &mut Vec<u8>) -> io::Result<HashSet<Vec<u8>>> {
        let mut key = Vec::new();
        if requests.is_empty() {
            self.writer.write_all(out)?;
            return Ok(HashSet::new());
        }
        out.extend_from_slice(b"get");
        for request in requests {
            request.key(&mut key);
            out.push(b' ');
            out.extend_from_slice(&key);
        }
        out.extend_from_slice(b"\r\n");
        self.writer.write_all(out)?;
        let mut found = HashSet::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            if self.reader.read_until(b'\n', &mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if line == b"END\r\n" {
                return Ok(found);
            }
            let mut words = line.trim_ascii_end().split(|b| *b == b' ');
            let (Some(b"VALUE"), Some(key), Some(_), Some(len)) = (words.next(), words.next(), words.next(), words.next()) else {
                return Err(io::Error::other(String::from_utf8_lossy(&line).into_owned()));
            };
            let len: usize = std::str::from_utf8(len)
                .ok()
                .and_then(|l| l.parse().ok())
                .ok_or(io::ErrorKind::InvalidData)?;
            found.insert(key.to_vec());
            self.value.resize(self.value.len().max(len + 2), b'v');
            let mut body = self.reader.by_ref().take(len as u64 + 2);
            io::copy(&mut body, &mut io::sink())?;
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
                    out.extend_from_slice(b"set ");
                    out.extend_from_slice(&key);
                    out.extend_from_slice(format!(" 0 0 {} noreply\r\n", request.value_len).as_bytes());
                    out.extend_from_slice(&self.value[..request.value_len]);
                    out.extend_from_slice(b"\r\n");
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
