//! What a server says at its region socket, and the descriptors that come with it: a program that asks there gets a region or an error.
//! Guards: P34

#![no_main]

use keyway_cache::{Cache, Options, Place};
use libfuzzer_sys::fuzz_target;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

/// The socket, and what its server says to all who ask.
struct Socket {
    path: PathBuf,
    says: Arc<Mutex<Vec<u8>>>,
}

impl Socket {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("keyway-fuzz-handout-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (path, region) = (folder.join("socket"), folder.join("region"));
        Cache::open(&Place::Path(region.clone()), &options())
            .expect("a region")
            .close();
        let listener = UnixListener::bind(&path).expect("a socket");
        let says = Arc::new(Mutex::default());
        let told = Arc::clone(&says);
        std::thread::spawn(move || serve(&listener, &region, &told));
        Self { path, says }
    }
}

fn options() -> Options {
    Options::new().memory(2 << 20).item_size_max(64 << 10)
}

/// Each input: which descriptors, two bits each, and the line.
fn serve(listener: &UnixListener, region: &Path, says: &Mutex<Vec<u8>>) {
    for stream in listener.incoming() {
        let stream = stream.expect("a connection");
        let input = says.lock().expect("no input failed").clone();
        let [which, text @ ..] = &input[..] else { continue };
        let files: Vec<File> = (0..which & 3)
            .map(|i| match which >> (2 + 2 * i) & 3 {
                0 => File::options().read(true).write(true).open(region).expect("the region"),
                1 => File::open(region).expect("the region"),
                2 => File::open("/dev/zero").expect("a device"),
                _ => File::from(std::os::fd::OwnedFd::from(UnixStream::pair().expect("sockets").0)),
            })
            .collect();
        let descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let rights = if descriptors.is_empty() { &[][..] } else { &rights };
        let _ = sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(text)],
            rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
    }
}

fuzz_target!(|input: &[u8]| {
    static SOCKET: OnceLock<Mutex<Socket>> = OnceLock::new();
    let socket = SOCKET.get_or_init(|| Mutex::new(Socket::start()));
    let socket = socket.lock().expect("no input failed");
    *socket.says.lock().expect("no input failed") = input.to_vec();
    match Cache::open(&Place::Socket(socket.path.clone()), &options()) {
        Ok(cache) => {
            // What was handed out is the region: it is used like any.
            let _ = cache.with_session(|session, value| {
                let _ = session.set(b"key", b"value", 0);
                session.get_append(b"key", value).is_ok_and(|found| found.is_some())
            });
            cache.leave();
            cache.close();
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
