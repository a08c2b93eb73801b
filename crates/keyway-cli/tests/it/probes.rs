//! Probes. `docs/operating.md` lists them; each is in the program, also without its symbols, as one `nop`; and bpftrace, with the lines of
//! that document as they stand, sees what a server does. Its enemies: a probe that is missing, that is passed at another moment or with
//! other arguments than the document says, that costs more than its `nop`, or that packaging removes.
//! Guards: P50

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use harness::{DEADLINE, Scratch, program_on_path, skip, wait_until};
use keyway_cache::{Cache, Options, Place};
use nix::unistd::Uid;

const PROGRAM: &str = env!("CARGO_BIN_EXE_keyway");
const DOCUMENT: &str = include_str!("../../../../docs/operating.md");
/// What `VERB` stands for in the document's lines.
const VERBS: [&str; 6] = ["get", "set", "delete", "arithmetic", "touch", "flush"];
/// The program, as the document names it.
const INSTALLED: &str = "/usr/bin/keyway";
/// Set in a process that is to be recovered: the region.
const ROLE: &str = "KEYWAY_TEST_ROLE";
/// Sets of new keys, which evict others, and the length of their values.
const FILLED: u64 = 4_000;
const VALUE: usize = 1_000;

/// The section of the document.
fn section() -> &'static str {
    let (_, rest) = DOCUMENT.split_once("\n### Probes\n").unwrap();
    rest.split("\n#").next().unwrap()
}

/// The probes of the document's table, and how many arguments each has.
fn documented() -> BTreeMap<&'static str, usize> {
    let rows = section().lines().filter_map(|line| line.strip_prefix("| `"));
    rows.flat_map(|row| {
        let mut cells = row.split(" | ");
        let names = cells.next().unwrap().trim_end_matches('`').split("`, `");
        let arguments = cells.nth(1).unwrap().trim_end_matches([' ', '|']);
        let count = arguments.split("; ").filter(|argument| !argument.is_empty()).count();
        names.map(move |name| (name, count))
    })
    .collect()
}

/// The document's lines for bpftrace, for this program.
fn lines() -> Vec<String> {
    let lines = section().lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("usdt:"));
    let of_verbs = |line: &str| match line.contains("VERB") {
        true => VERBS.map(|verb| line.replace("VERB", verb)).to_vec(),
        false => vec![line.to_owned()],
    };
    lines
        .flat_map(of_verbs)
        .map(|line| line.replace(INSTALLED, PROGRAM))
        .collect()
}

/// Lines that count what is published and evicted between two gets, of these keys.
fn between() -> String {
    let at = |probe: &str, what: &str| format!("\nusdt:{PROGRAM}:keyway:{probe} {what}");
    [
        at("get_entry", "/str(arg0, arg1) == \"begin\"/ { @on = 1; }"),
        at("get_entry", "/str(arg0, arg1) == \"end\"/ { @on = 0; }"),
        at("publish", "/@on == 1/ { @published_between = count(); }"),
        at("evict", "/@on == 1/ { @evicted_between = count(); }"),
    ]
    .concat()
}

/// A probe in a program's file.
#[derive(Debug)]
struct Probe {
    name: String,
    address: u64,
    has_semaphore: bool,
    arguments: usize,
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The probes that a program's notes name.
fn probes_in(program: &Path) -> Vec<Probe> {
    let text = output("readelf", &["--notes", "--wide", program.to_str().unwrap()]);
    let mut notes = text.split("Provider: ").skip(1);
    let word = |note: &str, before: &str| {
        let (_, behind) = note.split_once(before).unwrap();
        behind.split([',', '\n']).next().unwrap().trim().to_owned()
    };
    let number = |note: &str, before: &str| u64::from_str_radix(&word(note, before)[2..], 16).unwrap();
    let place = |note: &str| Probe {
        name: word(note, "Name: "),
        address: number(note, "Location: "),
        has_semaphore: number(note, "Semaphore: ") != 0,
        arguments: word(note, "Arguments: ").split_whitespace().count(),
    };
    let ours = notes.by_ref().filter(|note| note.starts_with("keyway\n"));
    ours.map(place).collect()
}

#[test]
fn each_probe_of_the_document_is_a_nop_in_the_program() {
    for needed in ["readelf", "strip", "objdump"] {
        if program_on_path(needed).is_none() {
            return skip("the probes of the program", &format!("{needed} is not installed"));
        }
    }
    // As packages have it.
    let folder = Scratch::new();
    let stripped = folder.join("keyway");
    output("strip", &["--strip-unneeded", "-o", stripped.to_str().unwrap(), PROGRAM]);
    let found = probes_in(&stripped);
    let documented = documented();
    let names: BTreeSet<&str> = found.iter().map(|probe| probe.name.as_str()).collect();
    assert_eq!(names, documented.keys().copied().collect());
    for probe in &found {
        assert_eq!(Some(&probe.arguments), documented.get(&*probe.name), "{probe:?}");
        // Without a place: of a function that was left out. With a semaphore, the program would look at it each time.
        assert!(probe.address > 0 && !probe.has_semaphore, "{probe:?}");
    }
    let lines = lines();
    for name in documented.keys() {
        let begin = format!("usdt:{PROGRAM}:keyway:{name} ");
        assert!(lines.iter().any(|line| line.contains(&begin)), "no line for {name}");
    }
    if cfg!(target_arch = "x86_64") {
        for name in names {
            let probe = found.iter().find(|probe| probe.name == name).unwrap();
            let (from, to) = (probe.address.to_string(), (probe.address + 1).to_string());
            let from = format!("--start-address={from}");
            let to = format!("--stop-address={to}");
            let code = output("objdump", &["--disassemble", &from, &to, stripped.to_str().unwrap()]);
            assert!(code.trim_end().ends_with("nop"), "{probe:?}: {code}");
        }
    }
}

/// Not a test: a process that is killed within its session.
#[test]
fn a_process_that_is_killed() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let cache = Cache::open(&Place::at(place), &Options::new()).unwrap();
    let mut session = cache.session().unwrap();
    session.get(b"absent").unwrap();
    println!("\nattached");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that is killed at the end, and what it has printed.
struct Running {
    child: Child,
    printed: Arc<Mutex<String>>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let printed = Arc::new(Mutex::new(String::new()));
        let (out, to) = (child.stdout.take().unwrap(), Arc::clone(&printed));
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let mut text = to.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
        });
        Self { child, printed }
    }

    fn printed(&self) -> String {
        self.printed.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        wait_until(text, DEADLINE, || self.printed().contains(text).then_some(()));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    /// Sends a request, and returns the last line of its answer.
    fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "{request:?}");
            if !line.starts_with("VALUE ") && line != "v\r\n" {
                return line.trim_end().to_owned();
            }
        }
    }

    fn evictions(&mut self) -> u64 {
        self.0.get_mut().write_all(b"stats\r\n").unwrap();
        let mut evictions = None;
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0);
            match line.trim_end().strip_prefix("STAT evictions ") {
                Some(count) => evictions = count.parse().ok(),
                None if line == "END\r\n" => return evictions.unwrap(),
                None => {}
            }
        }
    }
}

/// The number that bpftrace says of a map, at its end.
fn counted(printed: &str, map: &str) -> u64 {
    let line = printed.lines().find_map(|line| line.strip_prefix(&format!("@{map}: ")));
    let line = line.unwrap_or_else(|| panic!("no @{map} in {printed}"));
    line.trim().parse().unwrap()
}

#[test]
fn bpftrace_sees_what_a_server_does() {
    let what = "bpftrace at the probes";
    if program_on_path("bpftrace").is_none() {
        return skip(what, "bpftrace is not installed");
    } else if !Uid::effective().is_root() {
        return skip(what, "it needs root");
    } else if !Path::new("/sys/bus/event_source/devices/uprobe").exists() {
        return skip(what, "this kernel has no probes of user space");
    }
    let folder = Scratch::new();
    let (socket, region) = (folder.join("socket"), folder.join("region"));
    let mut command = Command::new(PROGRAM);
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--memory",
        "2m",
        "--threads",
        "1",
        "--socket",
    ]);
    let server = Running::start(command.arg(&socket).arg("--region").arg(&region));
    server.wait_for(" ready: ");
    let mut client = Client(BufReader::new(UnixStream::connect(&socket).unwrap()));

    let pid = server.child.id().to_string();
    let mut command = Command::new("bpftrace");
    command.args(["-B", "line", "-p", &pid, "-e", &(lines().join("\n") + &between())]);
    let tracer = Running::start(command.stderr(Stdio::null()));
    // It attaches one probe after the other: all of them are there when the last one's line appears.
    wait_until("bpftrace attaches", DEADLINE, || {
        for verb in ["get a", "delete a", "incr a 1", "touch a 1", "set a 0 0 1\r\nv", "flush_all"] {
            client.ask(&format!("{verb}\r\n"));
        }
        let seen = tracer.printed();
        let all = ["get a\n", "delete a\n", "arithmetic a\n", "touch a\n", "set a\n", "flush \n"];
        all.iter().all(|line| seen.contains(line)).then_some(())
    });

    let evictions = client.evictions();
    client.ask("get begin\r\n");
    // The keys of each verb, and of each only what was asked.
    for (request, answer) in [
        ("set kept 0 0 1\r\nv", "STORED"),
        ("get kept none", "END"),
        ("mg kept v", "v"),
        ("set number 0 0 1\r\n7", "STORED"),
        ("incr number 1", "8"),
        ("touch kept 100", "TOUCHED"),
        ("delete kept", "DELETED"),
        ("delete number", "DELETED"),
        ("delete none", "NOT_FOUND"),
    ] {
        let answered = client.ask(&format!("{request}\r\n"));
        assert!(answered == answer || answered.starts_with("VA "), "{request}: {answered}");
    }
    for number in 0..FILLED {
        let value = "v".repeat(VALUE);
        assert_eq!(client.ask(&format!("set fill:{number} 0 0 {VALUE}\r\n{value}\r\n")), "STORED");
    }
    client.ask("get end\r\n");
    let evictions = client.evictions() - evictions;
    let mut command = harness::own_test(&[], module_path!(), "a_process_that_is_killed");
    command.env(ROLE, &region);
    let mut victim = Running::start(&mut command);
    victim.wait_for("\nattached\n");
    victim.child.kill().unwrap();
    victim.child.wait().unwrap();
    tracer.wait_for("recovered thread slot ");

    Command::new("kill")
        .args(["-s", "INT", &tracer.child.id().to_string()])
        .status()
        .unwrap();
    tracer.wait_for("@request_ns");
    wait_until("bpftrace ends", DEADLINE, || {
        let printed = tracer.printed();
        printed.contains("@set_ns").then_some(())
    });
    let printed = tracer.printed();
    let times = |line: &str| printed.lines().filter(|printed| *printed == line).count();
    for (line, due) in [
        ("get kept", 2),
        ("get none", 1),
        ("set kept", 1),
        ("arithmetic number", 1),
        ("touch kept", 1),
        ("delete kept", 1),
        ("delete number", 1),
        ("delete none", 1),
    ] {
        assert_eq!(times(line), due, "{line}: {printed}");
    }
    // Four sets, a count, a touch, two deletes.
    assert_eq!(counted(&printed, "published_between"), FILLED + 6);
    assert_eq!(counted(&printed, "evicted_between"), evictions);
    assert!(
        counted(&printed, "published") > FILLED && counted(&printed, "requests[2]") > FILLED,
        "{printed}"
    );
    assert!(counted(&printed, "requests[3]") == 1, "{printed}");
    let size = |line: &str| {
        let (key, rest) = line.strip_prefix("evicted fill:")?.split_once(", ")?;
        let (bytes, rest) = rest.split_once(" bytes, ")?;
        key.parse::<u64>().ok()?;
        Some((bytes.parse::<usize>().ok()?, rest.to_owned()))
    };
    let evicted: Vec<(usize, String)> = printed.lines().filter_map(size).collect();
    assert!(!evicted.is_empty(), "{printed}");
    for (bytes, rest) in evicted {
        assert!(
            (VALUE..VALUE + 40).contains(&bytes) && rest == "read before: 0",
            "{bytes} {rest}"
        );
    }
}
