//! The guest's side of [`crate::nvdimm`]: a namespace with a DAX file system on the NVDIMM, regions on it, writers, and the check.

use super::mount_at;
use crate::nvdimm::WRITERS;
use crate::tests::Verdict;
use crate::writes::{Answer, Call, Items, Stream, apply, explain, keys};
use harness::{Wire, wait_until};
use keyway_cache::{Arithmetic, Cache, Counted, Delete, Deleted, Options, Place, Session, Store, StoreMode, Stored};
use keyway_proto::{StoreVerb, client};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const DEVICE: &str = "/dev/pmem0";
const MEDIUM: &str = "/mnt";
/// The durable region, one that is cut off in cache mode, and one that is stopped cleanly.
const DURABLE: &str = "/mnt/durable";
const CACHE: &str = "/mnt/cache";
const STOPPED: &str = "/mnt/stopped";
const SOCKET: &str = "/run/keyway.sock";
/// Of the durable region. What lives in it is a fifth of this at most: nothing may be evicted.
const MEMORY: u64 = 48 << 20;
const MEMORY_OF_CACHE: u64 = 8 << 20;
/// Where the check leaves what its rounds were, for the writers of the next.
const HISTORY: &str = "/run/history";
const ITEMS_OF_CACHE: usize = 50;
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the NVDIMM a file system; durable mode is refused where it cannot be, and is what it says where it can.
pub fn prepare() -> Verdict {
    make_namespace()?;
    run(Command::new("mkfs.ext4").args(["-q", "-b", "4096", DEVICE]))?;
    // an ordinary file system, and one in memory
    mount_at(DEVICE, "ext4", MEDIUM, None)?;
    let refused = refusal(DURABLE)?;
    refusal("/dev/shm/durable")?;
    nix::mount::umount(MEDIUM).map_err(|e| format!("umount: {e}"))?;
    mount_medium()?;
    let cache = durable()?;
    let maps = fs::read_to_string("/proc/self/smaps").map_err(|e| e.to_string())?;
    // proc_pid_smaps(5): `sf` is a synchronous page fault
    let flags = maps
        .lines()
        .skip_while(|line| !line.contains(DURABLE))
        .find(|line| line.starts_with("VmFlags:"))
        .ok_or("the region is not mapped")?;
    if !flags.split_whitespace().any(|flag| flag == "sf") {
        return Err(format!("the region's mapping is not synchronous: {flags}"));
    }
    if cache.info().warm || !cache.close() {
        return Err("a new region was not new, or could not be closed".into());
    }
    Ok(format!(
        "refused elsewhere ({}); here the mapping is synchronous (sf)",
        refused.trim()
    ))
}

/// Makes the whole NVDIMM one namespace in the mode fsdax, as `ndctl create-namespace -m fsdax` does (Linux, Documentation/driver-api/nvdimm/nvdimm.rst).
fn make_namespace() -> Result<(), String> {
    let bus = "/sys/bus/nd/";
    let put = |place: &str, text: &str| {
        let path = format!("{bus}{place}");
        fs::write(&path, text).map_err(|e| format!("{path}: {e}"))
    };
    wait_until("the NVDIMM's namespace", PATIENCE, || {
        Path::new(DEVICE).exists().then_some(())
    });
    put("drivers/nd_pmem/unbind", "namespace0.0")?;
    put("devices/pfn0.0/mode", "pmem")?;
    put("devices/pfn0.0/uuid", "8a0c1d4e-6f2b-4c53-9a07-2b5e4d7f1c36")?;
    put("devices/pfn0.0/namespace", "namespace0.0")?;
    put("drivers/nd_pmem/bind", "pfn0.0")?;
    wait_until("the namespace's device", PATIENCE, || {
        Path::new(DEVICE).exists().then_some(())
    });
    Ok(())
}

fn mount_medium() -> Result<(), String> {
    wait_until("the namespace's device", PATIENCE, || {
        Path::new(DEVICE).exists().then_some(())
    });
    mount_at(DEVICE, "ext4", MEDIUM, Some("dax"))
}

/// What `keyway serve --durable` says before it ends, where it cannot be. The library says the same.
fn refusal(path: &str) -> Result<String, String> {
    let output = serve_command(path).output().map_err(|e| format!("keyway serve: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success()
        || !said.contains("MAP_SYNC")
        || !said.contains("Operation not supported")
        || !said.contains("-o dax")
    {
        return Err(format!("keyway serve --durable on {path}: {}, {said}", output.status));
    }
    match Cache::open(&Place::Path(path.into()), &options(true)) {
        Err(error) if said.contains(&error.to_string()) => {}
        Err(error) => return Err(format!("the library says {error}; keyway serve {said}")),
        Ok(_) => return Err(format!("the library opens {path}")),
    }
    if Path::new(path).exists() {
        return Err(format!("a refused start left {path}"));
    }
    Ok(said)
}

fn options(durable: bool) -> Options {
    Options::new()
        .memory(if durable { MEMORY } else { MEMORY_OF_CACHE })
        .durable(durable)
}

fn durable() -> Result<Cache, String> {
    Cache::open(&Place::Path(DURABLE.into()), &options(true)).map_err(|e| e.to_string())
}

fn serve_command(path: &str) -> Command {
    let mut command = Command::new("keyway");
    let memory = (MEMORY >> 20).to_string();
    command.args([
        "serve",
        "--durable",
        "--listen",
        "127.0.0.1:0",
        "--socket",
        SOCKET,
        "--memory",
        &memory,
    ]);
    command.args(["--threads", "1", "--region", path]);
    command
}

/// Starts a server of the durable region, and connects to it. It ends with the guest.
fn serve() -> Result<(Child, Wire), String> {
    // left by one that was stopped
    let _ = fs::remove_file(SOCKET);
    let mut server = serve_command(DURABLE).spawn().map_err(|e| format!("keyway serve: {e}"))?;
    let stream = wait_until("the server", PATIENCE, || match server.try_wait() {
        Ok(None) => UnixStream::connect(SOCKET).ok().map(Ok),
        ended => Some(Err(format!("keyway serve ended: {ended:?}"))),
    })?;
    Ok((server, Wire::from_unix(stream).map_err(|e| e.to_string())?))
}

/// Writes by `SEED` until the power fails. Regions in cache mode are there as well, one in use and one stopped cleanly.
pub fn write(arguments: &[String]) -> Verdict {
    let seed: u64 = arguments.first().and_then(|seed| seed.parse().ok()).ok_or("no seed")?;
    let mut items = std::array::from_fn(|_| Items::new());
    match fs::read_to_string(HISTORY) {
        Ok(history) => replay(&mut items, &history)?,
        // the first round is in the boot that prepared
        Err(_) if arguments.get(1).is_some_and(|round| round == "0") => {}
        Err(e) => return Err(format!("{HISTORY}: {e}")),
    }
    let stopped = Cache::open(&Place::Path(STOPPED.into()), &options(false)).map_err(|e| e.to_string())?;
    fill(&stopped)?;
    if !stopped.close() {
        return Err("the region could not be stopped cleanly".into());
    }
    let in_use = Cache::open(&Place::Path(CACHE.into()), &options(false)).map_err(|e| e.to_string())?;
    fill(&in_use)?;
    let (_server, wire) = serve()?;
    let cache = durable()?;
    let session = cache.session().map_err(|e| e.to_string())?;
    let [of_socket, of_library] = items;
    let by_socket = std::thread::spawn(move || write_on(&mut Doors::Socket(wire), 0, seed, of_socket));
    let by_library = write_on(&mut Doors::Library(Box::new(session)), 1, seed, of_library);
    let by_socket = by_socket.join().map_err(|_| "a writer panicked")?;
    Err(format!("a writer ended: {by_socket:?}, {by_library:?}"))
}

fn fill(cache: &Cache) -> Result<(), String> {
    let mut session = cache.session().map_err(|e| e.to_string())?;
    for i in 0..ITEMS_OF_CACHE {
        let stored = session.set(format!("key-{i}").as_bytes(), &[b'v'; 500], 0);
        stored.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// How many items of [`fill`] there are.
fn count(cache: &Cache) -> Result<usize, String> {
    let mut session = cache.session().map_err(|e| e.to_string())?;
    let there = (0..ITEMS_OF_CACHE).filter(|i| {
        let value = session.get(format!("key-{i}").as_bytes());
        value.is_ok_and(|value| value.is_some_and(|value| value == [b'v'; 500]))
    });
    Ok(there.count())
}

fn write_on(door: &mut Doors, writer: usize, seed: u64, mut items: Items) -> Result<(), String> {
    let mut report = File::options().write(true).open(super::REPORT).map_err(|e| e.to_string())?;
    let mut stream = Stream::new(seed, writer);
    for calls in 1_u64.. {
        let (key, call) = stream.next_call();
        let expected = apply(&mut items, &key, &call);
        let answer = door.call(&key, &call)?;
        if answer != expected {
            let wrong = format!("writer {writer}, call {calls}, {key}: {answer:?}, expected {expected:?}");
            super::report(&format!("FAILED nvdimm-write: {wrong}"));
            return Err(wrong);
        }
        report
            .write_all(format!("a {writer} {calls}\n").as_bytes())
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Checks what is there after a cut, given the rounds so far: `SEED-CALLS-CALLS` each. The last one's calls are those that it
/// had acknowledged; how many they were is printed and noted.
pub fn check(rounds: &[String]) -> Verdict {
    mount_medium()?;
    let (last, earlier) = rounds.split_last().ok_or("no rounds")?;
    let mut items: [Items; WRITERS] = std::array::from_fn(|_| Items::new());
    replay(&mut items, &earlier.join(":"))?;
    let (seed, acknowledged) = round(last)?;
    // The first to come repairs: the server or the library, by turns.
    let server_first = rounds.len() % 2 == 1;
    let first = if server_first { None } else { Some(durable()?) };
    let (mut server, wire) = serve()?;
    let cache = first.map_or_else(durable, Ok)?;
    if !cache.info().warm {
        return Err("the durable region is not the one that was there".into());
    }
    let session = cache.session().map_err(|e| e.to_string())?;
    let mut doors = [Doors::Socket(wire), Doors::Library(Box::new(session))];
    let mut calls = [0; WRITERS];
    for (writer, calls) in calls.iter_mut().enumerate() {
        let [by_socket, by_library] = &mut doors;
        let found = read(by_socket, writer)?;
        if found != read(by_library, writer)? {
            return Err("the library sees other items than the server".into());
        }
        *calls = explain(&mut items[writer], seed, writer, acknowledged[writer], &found)?;
    }
    drop(doors);
    server.kill().and_then(|()| server.wait()).map_err(|e| e.to_string())?;
    let there: usize = items.iter().map(Items::len).sum();
    cache.close();
    let keyway_check = sound(DURABLE)?;
    let others = check_others()?;
    let told = calls.map(|n| n.to_string()).join("-");
    super::report(&format!("was {told}"));
    let history = [earlier, &[format!("{seed}-{told}")]].concat().join(":");
    fs::write(HISTORY, history).map_err(|e| format!("{HISTORY}: {e}"))?;
    Ok(format!(
        "{acknowledged:?} acknowledged and told, {calls:?} done, all {there} items as they must be, repaired by the {}; {keyway_check}; {others}",
        if server_first { "server" } else { "library" }
    ))
}

/// In cache mode the region that was cut off is discarded, and the one that was stopped cleanly is warm.
fn check_others() -> Result<String, String> {
    let cut_off = Cache::open(&Place::Path(CACHE.into()), &options(false)).map_err(|e| e.to_string())?;
    match (cut_off.info().warm, count(&cut_off)?) {
        (false, 0) => {}
        other => {
            return Err(format!(
                "a region in cache mode that was cut off is not discarded (warm, items: {other:?})"
            ));
        }
    }
    let stopped = Cache::open(&Place::Path(STOPPED.into()), &options(false)).map_err(|e| e.to_string())?;
    match (stopped.info().warm, count(&stopped)?) {
        (true, ITEMS_OF_CACHE) => {}
        other => {
            return Err(format!(
                "a region that was stopped cleanly is not as it was (warm, items: {other:?})"
            ));
        }
    }
    for cache in [cut_off, stopped] {
        cache.close();
    }
    sound(CACHE)?;
    sound(STOPPED)?;
    Ok("in cache mode the region that was cut off is discarded, the stopped one warm".into())
}

/// That `keyway check` finds nothing.
fn sound(path: &str) -> Result<String, String> {
    let said = run(Command::new("keyway").args(["check", path]).stderr(Stdio::piped()))?;
    let last = said.lines().last().unwrap_or_default().to_owned();
    if last.contains("all invariants hold") {
        Ok(last)
    } else {
        Err(said)
    }
}

/// Changes the durable region in four ways that a power failure must not, and demands that the judge refuses each.
pub fn faults(_: &[String]) -> Verdict {
    let history = fs::read_to_string(HISTORY).map_err(|e| format!("{HISTORY}: {e}"))?;
    let (earlier, last) = history.rsplit_once(':').unwrap_or(("", &history));
    let (seed, calls) = round(last)?;
    let mut start: [Items; WRITERS] = std::array::from_fn(|_| Items::new());
    replay(&mut start, earlier)?;
    let cache = durable()?;
    let mut door = Doors::Library(Box::new(cache.session().map_err(|e| e.to_string())?));
    let sound = read(&mut door, 0)?;
    let judge = |what: &str, door: &mut Doors, expected: bool| {
        let found = read(door, 0)?;
        match explain(&mut start[0].clone(), seed, 0, calls[0], &found) {
            Ok(_) if expected => Ok(()),
            Err(_) if !expected => Ok(()),
            other => Err(format!("{what}: {other:?}")),
        }
    };
    judge("untouched", &mut door, true)?;
    let (key, value) = sound.iter().find(|(_, value)| value.len() > 100).ok_or("no item")?;
    let gone = keys(0).find(|key| !sound.contains_key(key)).ok_or("nothing is deleted")?;
    let mut torn = value.clone();
    torn[50] ^= 1;
    let older = value[..value.len() / 2].to_vec();
    let wrongs = [
        ("lost", key, Call::Delete),
        ("risen", &gone, Call::Store(value.clone())),
        ("torn", key, Call::Store(torn)),
        ("older", key, Call::Store(older)),
    ];
    for (what, wrong_key, call) in wrongs {
        door.call(wrong_key, &call)?;
        judge(what, &mut door, false)?;
        let undo = if *wrong_key == gone {
            Call::Delete
        } else {
            Call::Store(value.clone())
        };
        door.call(wrong_key, &undo)?;
        judge("as it was", &mut door, true)?;
    }
    Ok("lost, risen, torn and older: each refused".into())
}

/// A round's seed, and its writers' calls.
fn round(text: &str) -> Result<(u64, [u64; WRITERS]), String> {
    let numbers: Result<Vec<u64>, _> = text.split('-').map(str::parse).collect();
    match numbers.as_deref() {
        Ok([seed, a, b]) => Ok((*seed, [*a, *b])),
        _ => Err(format!("'{text}' is no round")),
    }
}

/// Does again what earlier rounds did.
fn replay(items: &mut [Items; WRITERS], history: &str) -> Result<(), String> {
    for entry in history.split(':').filter(|entry| !entry.is_empty()) {
        let (seed, calls) = round(entry)?;
        for (writer, items) in items.iter_mut().enumerate() {
            let mut stream = Stream::new(seed, writer);
            for _ in 0..calls[writer] {
                let (key, call) = stream.next_call();
                apply(items, &key, &call);
            }
        }
    }
    Ok(())
}

/// All items of a writer.
fn read(door: &mut Doors, writer: usize) -> Result<Items, String> {
    let mut items = Items::new();
    for key in keys(writer) {
        if let Some(value) = door.get(&key)? {
            items.insert(key, value);
        }
    }
    Ok(items)
}

/// A way to the region.
enum Doors {
    Socket(Wire),
    Library(Box<Session>),
}

impl Doors {
    fn call(&mut self, key: &str, call: &Call) -> Result<Answer, String> {
        match self {
            Self::Socket(wire) => ask(wire, key, call).map_err(|e| format!("{key}: {e}"))?,
            Self::Library(session) => call_library(session, key.as_bytes(), call),
        }
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>, String> {
        match self {
            Self::Library(session) => session.get(key.as_bytes()).map_err(|e| format!("get {key}: {e}")),
            Self::Socket(wire) => get(wire, key).map_err(|e| format!("get {key}: {e}"))?,
        }
    }
}

fn call_library(session: &mut Session, key: &[u8], call: &Call) -> Result<Answer, String> {
    let stored = |stored| match stored {
        Stored::Stored { .. } => Ok(Answer::Done),
        Stored::NotStored => Ok(Answer::Absent),
        other => Err(format!("{other:?}")),
    };
    let append = Store {
        mode: StoreMode::Append,
        ..Store::default()
    };
    let answered = match call {
        Call::Store(value) => session.set(key, value, 0).map(stored),
        Call::Append(more) => session.store(key, more, &append).map(stored),
        Call::Delete => session.delete(key, &Delete::default()).map(|deleted| match deleted {
            Deleted::Deleted => Ok(Answer::Done),
            Deleted::NotFound => Ok(Answer::Absent),
            other => Err(format!("{other:?}")),
        }),
        Call::Count(delta) => {
            let how = Arithmetic {
                delta: *delta,
                ..Arithmetic::default()
            };
            session.arithmetic(key, &how).map(|counted| match counted {
                Counted::Value { value, .. } => Ok(Answer::Number(value)),
                Counted::NotFound => Ok(Answer::Absent),
                other => Err(format!("{other:?}")),
            })
        }
    };
    answered.map_err(|e| e.to_string())?
}

fn ask(wire: &mut Wire, key: &str, call: &Call) -> std::io::Result<Result<Answer, String>> {
    let (mut request, key) = (Vec::new(), key.as_bytes());
    let store = |verb, value| keyway_proto::Store {
        verb,
        key,
        flags: 0,
        exptime: 0,
        cas: 0,
        noreply: false,
        value,
    };
    match call {
        Call::Store(value) => client::store(&mut request, &store(StoreVerb::Set, value)),
        Call::Append(more) => client::store(&mut request, &store(StoreVerb::Append, more)),
        Call::Delete => client::delete(&mut request, key, false),
        Call::Count(by) => client::arithmetic(&mut request, key, *by, false, false),
    }
    wire.send(&request)?;
    wire.receive(|answer| match answer {
        client::Answer::Stored | client::Answer::Deleted => Ok(Answer::Done),
        client::Answer::NotStored | client::Answer::NotFound => Ok(Answer::Absent),
        client::Answer::Number(number) => Ok(Answer::Number(*number)),
        other => Err(format!("{other:?}")),
    })
}

fn get(wire: &mut Wire, key: &str) -> std::io::Result<Result<Option<Vec<u8>>, String>> {
    let found = wire.get(false, &[key])?.pop();
    Ok(match found {
        Some(item) if item.flags != 0 => Err(format!("{item:?}")),
        found => Ok(found.map(|item| item.value)),
    })
}

/// Runs a program to its end: what it printed.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(said)
    } else {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(format!("{command:?}: {}: {said}{errors}", output.status))
    }
}
