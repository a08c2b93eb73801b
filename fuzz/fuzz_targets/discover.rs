//! What a server on this host says to a program that asks it for its region, as the drop-in does: the program gets the region that the
//! server names, or goes to the server. It opens no other file, and makes none.
//! Guards: P34

#![no_main]

#[allow(dead_code, reason = "the drop-in's own, of which this target asks one thing")]
#[path = "../../bindings/libmemcached/src/discover.rs"]
mod discover;

/// What it says to the user.
mod say {
    pub(crate) fn say(_: &str) {}
}

use discover::{Discovery, Entry, Target};
use keyway_cache::server::ServerCache as _;
use keyway_cache::{Cache, Options, Place};
use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A server that says what the input is, and what it can name.
struct Stage {
    folder: PathBuf,
    socket: PathBuf,
    /// device and inode of two regions
    regions: [(u64, u64); 2],
    says: Arc<Mutex<Vec<u8>>>,
}

/// How long a question is waited for.
const PATIENCE: Duration = Duration::from_millis(5);

const REGIONS: [&str; 2] = ["region", "another"];
const SOCKET: &str = "socket";
/// A file that is no region.
const FILE: &str = "file";
const ABSENT: &str = "absent";

impl Stage {
    fn start() -> Self {
        // SAFETY: no other thread of this process runs yet.
        unsafe { std::env::set_var("KEYWAY_LIBMEMCACHED_QUIET", "1") };
        let folder = std::env::temp_dir().join(format!("keyway-fuzz-discover-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let regions = REGIONS.map(|name| {
            let cache = Cache::open(&Place::Path(folder.join(name)), &options()).expect("a region");
            let identity = cache.identity().expect("a file");
            cache.close();
            identity
        });
        std::fs::write(folder.join(FILE), "no region").expect("a file");
        let socket = folder.join(SOCKET);
        let listener = UnixListener::bind(&socket).expect("a socket");
        let says = Arc::new(Mutex::default());
        let told = Arc::clone(&says);
        std::thread::spawn(move || serve(&listener, &told));
        Self {
            folder,
            socket,
            regions,
            says,
        }
    }

    /// The input's answer: bytes below 7 stand for what the fuzzer cannot know.
    fn answer(&self, input: &[u8]) -> Vec<u8> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let identity = |(device, inode): (u64, u64)| format!("{device}:{inode}");
        let names = [
            identity(self.regions[0]),
            identity(self.regions[1]),
            path(REGIONS[0]),
            path(REGIONS[1]),
            path(FILE),
            path(ABSENT),
            path(SOCKET),
        ];
        input.iter().fold(Vec::new(), |mut answer, byte| {
            match names.get(usize::from(*byte)) {
                Some(name) => answer.extend_from_slice(name.as_bytes()),
                None => answer.push(*byte),
            }
            answer
        })
    }
}

fn options() -> Options {
    Options::new().memory(2 << 20).item_size_max(64 << 10)
}

fn serve(listener: &UnixListener, says: &Mutex<Vec<u8>>) {
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        let answer = says.lock().expect("no input failed").clone();
        // Whoever asks may have gone: for the server that is no error. What was asked is read, so that the answer arrives; who comes for a
        // region by its socket asks nothing.
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let _ = stream.read(&mut [0; 256]);
        let _ = stream.write_all(&answer);
    }
}

/// The regions that an answer names, device and inode. A number may have leading zeros, or a plus.
fn regions_named(answer: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    answer.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = String::from_utf8_lossy(line);
        let (device, inode) = line.trim_end().strip_prefix("STAT keyway_region ")?.split_once(':')?;
        device.parse().ok().zip(inode.parse().ok())
    })
}

fuzz_target!(|input: &[u8]| {
    static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
    let stage = STAGE.get_or_init(|| Mutex::new(Stage::start()));
    let stage = stage.lock().expect("no input failed");
    let answer = stage.answer(input);
    *stage.says.lock().expect("no input failed") = answer.clone();
    let server = Entry::new(Target::of(stage.socket.to_str().expect("a name"), 0).expect("it is on this host"));
    match server.discover() {
        Discovery::Region(open) => {
            assert!(stage.regions.contains(&open.identity), "another file is taken for a region");
            assert!(
                regions_named(&answer).any(|named| named == open.identity),
                "the server has not named the region"
            );
            let _ = open.cache.with_session(|session, value| {
                let _ = session.set(b"key", b"value", 0);
                session.get_append(b"key", value).is_ok_and(|found| found.is_some())
            });
            open.cache.leave();
        }
        Discovery::Stranger => {}
        Discovery::NoServer(error) => panic!("the server is there: error {error}"),
    }
    assert!(
        !Path::exists(&stage.folder.join(ABSENT)),
        "a file was made that a server named"
    );
});
