//! Starts on machines that lack something: the server says so before it is ready, with number, limit and remedy, or it serves.
//! Guards: P47

use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use harness::{DEADLINE, Scratch, Wire, free_port, run_to_end, wait_for_ready};

const KEYWAY: &str = env!("CARGO_BIN_EXE_keyway");
/// A user without processes, also if these tests run twice at a time: limits count all that a user has.
static USER: LazyLock<String> = LazyLock::new(|| (1_000_000 + std::process::id()).to_string());
/// Runs the words after it as that user.
static AS_USER: LazyLock<[&str; 6]> = LazyLock::new(|| ["setpriv", "--reuid", &USER, "--regid", &USER, "--clear-groups"]);

/// `words` before the program, for example those of prlimit(1).
fn keyway(words: &[&str], arguments: &[&str]) -> Command {
    command_of(KEYWAY, words, arguments)
}

fn command_of(program: &str, words: &[&str], arguments: &[&str]) -> Command {
    let mut all = words.iter().copied().chain([program]).chain(arguments.iter().copied());
    let mut command = Command::new(all.next().unwrap());
    command.args(all);
    command
}

/// Whether this machine lets the test run a program so.
fn can(test: &str, words: &[&str]) -> bool {
    let tried = Command::new(words[0]).args(&words[1..]).arg("true").output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        harness::skip(test, &format!("`{}` is not possible here; run as root", words.join(" ")));
    }
    can
}

/// A folder in which that user may make files.
fn open_folder() -> Scratch {
    let scratch = Scratch::new();
    std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o777)).unwrap();
    scratch
}

/// The program in that folder: where it was built, that user may not reach it.
fn program_in(folder: &Scratch) -> String {
    let program = folder.join("keyway");
    harness::copy_program(KEYWAY, &program);
    program.display().to_string()
}

/// Kills the server at the end.
struct Served(Child);

impl Served {
    /// A server that must get ready.
    fn start(mut command: Command) -> (Self, String) {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut served = Self(child);
        let line = wait_for_ready(&mut served.0);
        (served, line)
    }

    fn stop(mut self) -> ExitStatus {
        nix::sys::signal::kill(self.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
        self.0.wait().unwrap()
    }

    fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.0.id().cast_signed())
    }

    /// Its next line on standard error.
    fn warning(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.0.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It ends with this code, is never ready, and says all of this in one line.
fn is_refused(mut command: Command, code: i32, says: &[&str]) {
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert_eq!(status.code(), Some(code), "{output}");
    assert!(!output.contains("ready") && !output.contains("panicked"), "{output}");
    let line = output.lines().next().unwrap_or_default();
    for word in says {
        assert!(line.contains(word), "{word}: {output}");
    }
}

#[test]
fn a_system_that_gives_no_threads_is_named_before_the_server_is_ready() {
    let scratch = open_folder();
    let program = program_in(&scratch);
    for most in [1, 5, 8] {
        let limit = format!("--nproc={most}:{most}");
        let words = [&AS_USER[..], &["prlimit", &limit]].concat();
        if !can("too few threads", &words) {
            return;
        }
        let region = scratch.join("region");
        let (port, region) = (free_port().to_string(), region.to_str().unwrap());
        let arguments = ["memcached", "-l", "127.0.0.1", "-p", &port, "-t", "4", "-e", region];
        let says = [
            "8 threads",
            &format!("may have {most} processes and threads in all (RLIMIT_NPROC, ulimit -u)"),
            "fewer threads (--threads, -t)",
        ];
        is_refused(command_of(&program, &words, &arguments), 71, &says);
        // With one process it cannot start a second one.
        let alone = ["(-d)", says[1], "leave -d out"];
        let says = if most > 1 { &says } else { &alone };
        is_refused(command_of(&program, &words, &[&arguments[..], &["-d"]].concat()), 71, says);
        let address: SocketAddr = ([127, 0, 0, 1], port.parse().unwrap()).into();
        assert!(TcpStream::connect(address).is_err(), "something serves");
    }
}

#[test]
fn a_limit_of_descriptors_with_which_no_client_could_connect_is_refused() {
    let port = free_port().to_string();
    let listen = format!("127.0.0.1:{port}");
    let arguments = [
        "serve",
        "--event-loop",
        "epoll",
        "--listen",
        &listen,
        "--region",
        "memfd",
        "--memory",
        "4m",
    ];
    let says = [
        "may open 32 files (RLIMIT_NOFILE)",
        "4 threads needs 48",
        "ulimit -n",
        "fewer threads",
    ];
    is_refused(keyway(&["prlimit", "--nofile=32:32"], &arguments), 71, &says);
    // With as many as it says, it serves one.
    let (mut served, _) = Served::start(keyway(&["prlimit", "--nofile=49:49"], &arguments));
    assert!(served.warning().contains("more than this process may open, about 1;"));
    let stream = TcpStream::connect(&listen).unwrap();
    assert!(Wire::from_tcp(stream).unwrap().ask("version").unwrap().starts_with("VERSION"));
    assert!(served.stop().success());
}

#[test]
fn a_new_region_has_slots_for_its_servers_threads_and_those_of_the_next_one() {
    let scratch = Scratch::new();
    let region = scratch.join("region");
    let region = region.to_str().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let arguments = [
        "serve", "--listen", &listen, "--region", region, "--memory", "64m", "-t", "65",
    ];
    let (first, _) = Served::start(keyway(&[], &arguments));
    let stats = |listen: &str| {
        let stats = Wire::from_tcp(TcpStream::connect(listen).unwrap())
            .unwrap()
            .stats("")
            .unwrap();
        let of = |name: &str| {
            stats
                .iter()
                .find(|(known, _)| known == name)
                .unwrap()
                .1
                .parse::<u64>()
                .unwrap()
        };
        of("keyway_sessions_max")
    };
    assert_eq!(stats(&listen), 112 + 2 * (2 * 65 + 3), "programs keep 112");
    let (second, _) = Served::start(keyway(&[], &[&arguments[..], &["--take-over"]].concat()));
    let mut first = first;
    assert!(first.0.wait().unwrap().success(), "taken over");
    assert!(second.stop().success());
    // An existing region keeps its number of slots.
    let needed = [
        "needs 403 thread slots",
        "fewer threads (--threads, -t)",
        "remove the region's file",
    ];
    is_refused(
        keyway(&[], &["serve", "--listen", &listen, "--region", region, "-t", "200"]),
        71,
        &needed,
    );
    // A small one has no room for so many.
    let small = scratch.join("small");
    let small = [
        "serve",
        "--listen",
        &listen,
        "--region",
        small.to_str().unwrap(),
        "--memory",
        "4m",
        "-t",
        "300",
    ];
    is_refused(
        keyway(&[], &small),
        64,
        &["can have 1024 thread slots", "(603)", "(--memory, -m)"],
    );
    assert!(!scratch.join("small").exists());
}

#[test]
fn memcacheds_command_line_serves_where_no_file_can_be_made() {
    for mount in [
        "mount -t tmpfs -o ro none /dev/shm",
        "mount -t tmpfs -o mode=0755 none /dev/shm",
        "mount -t tmpfs -o nr_inodes=1 none /dev/shm",
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3",
    ] {
        let shell = format!("{mount} && exec {} \"$@\"", AS_USER.join(" "));
        let words = ["unshare", "--mount", "sh", "-c", &shell, "sh"];
        if !can("no usable /dev/shm", &words) {
            return;
        }
        let port = free_port().to_string();
        let arguments = ["memcached", "-o", "event_loop=epoll", "-l", "127.0.0.1", "-p", &port];
        let (mut served, line) = Served::start(keyway(&words, &arguments));
        assert!(line.contains("region memfd"), "{mount}: {line}");
        let warning = served.warning();
        assert!(
            warning.contains("in memory without a file, and ends with this server"),
            "{mount}: {warning}"
        );
        assert!(served.stop().success());
    }
}

/// The region's memory as the server's ready line has it, in MiB. A region consists of whole segments, so it may have a tenth less.
fn memory_of(line: &str) -> &str {
    let size = line.split(['(', ',']).find_map(|part| part.strip_suffix(" MiB"));
    match size.unwrap_or_default() {
        "3.9" => "4",
        "7.9" => "8",
        size => size,
    }
}

#[test]
fn a_start_without_a_size_leaves_the_regions_memory_alone() {
    let scratch = Scratch::new();
    let region = scratch.join("region");
    let (region, listen) = (region.to_str().unwrap(), format!("127.0.0.1:{}", free_port()));
    let port = listen.rsplit(':').next().unwrap();
    // What else this machine's processes have of locked memory must not matter.
    let serve = ["serve", "--event-loop", "epoll", "--listen", &listen, "--region", region];
    let memcached = [
        "memcached",
        "-o",
        "event_loop=epoll",
        "-l",
        "127.0.0.1",
        "-p",
        port,
        "-u",
        "root",
        "-e",
        region,
    ];
    let starts: [(&[&str], &[&str], &str); 5] = [
        (&serve, &["--memory", "4m"], "4"),
        (&serve, &[], "4"),
        (&memcached, &[], "4"),
        (&memcached, &["-m", "8"], "8"),
        (&serve, &[], "8"),
    ];
    for (command, size, wanted) in starts {
        let (mut served, line) = Served::start(keyway(&[], &[command, size].concat()));
        assert_eq!(memory_of(&line), wanted, "{command:?} {size:?}: {line}");
        nix::sys::signal::kill(served.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(served.0.wait().unwrap().success());
        let mut log = String::new();
        served.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(log, "", "{command:?} {size:?}");
    }
    assert!(Path::new(region).exists());
}

#[test]
fn a_check_refuses_what_the_start_would_refuse() {
    let scratch = Scratch::new();
    let long = scratch.join(&"x".repeat(120));
    let absent = scratch.join("absent");
    let (long, absent) = (long.to_str().unwrap(), absent.to_str().unwrap());
    let region = scratch.join("region");
    let listen = format!("127.0.0.1:{}", free_port());
    let tls = format!("tls://127.0.0.1:{}", free_port());
    let always = ["serve", "--listen", &listen, "--region", region.to_str().unwrap()];
    let cases: [(&[&str], &[&str]); 10] = [
        (&["--memory", "1m"], &["2097152"]),
        (&["--memory", "4m", "-t", "300"], &["1024 thread slots"]),
        (&["--cpus", "9999"], &["9999"]),
        (&["--auth-file", absent], &[absent]),
        (&["--listen", &tls, "--tls-cert", absent, "--tls-key", absent], &[absent]),
        (&["--udp", &listen, "--kernel", "nosuch0"], &["nosuch0"]),
        (&["--socket", long], &["at most 107", long]),
        (&["--region-socket", long], &["at most 107"]),
        (&["--http", long], &["at most 107"]),
        (&["--gap", "stale"], &["--max-gap"]),
    ];
    for (options, says) in cases {
        if options.contains(&"--kernel") && !cfg!(feature = "kernel") {
            harness::skip("an interface that is absent", "this build has no kernel door");
            continue;
        }
        if options.contains(&"--kernel") && !nix::unistd::geteuid().is_root() {
            harness::skip("an interface that is absent", "only root gets as far as that");
            continue;
        }
        for check in [&["--check"][..], &[]] {
            let mut command = keyway(&[], &[&always, options, check].concat());
            let (status, output) = run_to_end(&mut command, DEADLINE);
            assert!(!status.success() && !output.contains("ready"), "{options:?}: {output}");
            for word in says {
                assert!(output.contains(word), "{options:?}: {word}: {output}");
            }
        }
    }
    let fresh = scratch.join("fresh");
    let arguments = ["serve", "--listen", &listen, "--region", fresh.to_str().unwrap(), "--check"];
    let (status, output) = run_to_end(&mut keyway(&[], &arguments), DEADLINE);
    assert!(status.success(), "{output}");
    assert!(!fresh.exists(), "a check makes no region");
}

#[test]
fn an_address_that_is_open_to_other_machines_is_named() {
    let scratch = Scratch::new();
    let users = scratch.join("users");
    std::fs::write(&users, "ann:secret\n").unwrap();
    std::fs::set_permissions(&users, PermissionsExt::from_mode(0o600)).unwrap();
    let everywhere = format!("0.0.0.0:{}", free_port());
    let here = format!("127.0.0.1:{}", free_port());
    let cases: [(&str, &[&str], bool); 3] = [
        (&everywhere, &[], true),
        (&everywhere, &["--auth-file", users.to_str().unwrap()], false),
        (&here, &[], false),
    ];
    for (listen, options, is_open) in cases {
        let arguments = ["serve", "--region", "memfd", "--memory", "4m", "--listen", listen];
        let (mut served, _) = Served::start(keyway(&[], &[&arguments[..], options].concat()));
        nix::sys::signal::kill(served.pid(), nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(served.0.wait().unwrap().success());
        let mut log = String::new();
        served.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        assert_eq!(
            log.contains("is open to other machines without a login"),
            is_open,
            "{listen}: {log}"
        );
    }
}

/// In a mount namespace in which nothing is at /proc: what can be served is served, and what cannot is refused before it is made.
#[test]
fn without_proc_it_serves_from_memory_or_makes_nothing() {
    let words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /proc && exec \"$@\"",
        "sh",
    ];
    if !can("a start without /proc", &words) {
        return;
    }
    let memory = format!("/dev/shm/keyway-test-noproc-{}", std::process::id());
    let serve = |region: &str| {
        let listen = format!("127.0.0.1:{}", free_port());
        keyway(
            &words,
            &[
                "serve",
                "--listen",
                &listen,
                "--memory",
                "4m",
                "--threads",
                "1",
                "--region",
                region,
            ],
        )
    };
    let (served, line) = Served::start(serve(&memory));
    assert!(line.contains(&memory), "{line}");
    served.stop();
    std::fs::remove_file(&memory).unwrap();
    let says = ["no region was made", "mount /proc", "/dev/shm"];
    is_refused(serve("memfd"), 2, &[&says[..], &["/proc/self/fd"]].concat());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if nix::sys::statfs::statfs(folder).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC) {
        return harness::skip("a region on a disk without /proc", "the tests' folder is in memory");
    }
    let region = folder.join(format!("noproc-{}", std::process::id()));
    is_refused(
        serve(region.to_str().unwrap()),
        2,
        &[&says[..], &["which boot this is", region.to_str().unwrap()]].concat(),
    );
    assert!(!region.exists());
}

/// A file system that cannot give a region its memory is named with what it has, what is needed, and what helps.
#[test]
fn a_file_system_without_room_is_named_with_what_it_has() {
    let mounted = |kind: &str, options: &str| {
        let script = format!("mount -t {kind} -o {options} keyway-test /mnt && exec \"$@\"");
        ["unshare", "--mount", "sh", "-c", &script, "sh"].map(str::to_owned)
    };
    for (kind, options, memory, says) in [
        (
            "tmpfs",
            "size=8m",
            "16m",
            &[
                "room for a region of 16",
                "8188 KiB free",
                "64 KiB stay free",
                "less memory",
                "file system more",
            ][..],
        ),
        // Of memory that is no multiple of its pages, too.
        ("hugetlbfs", "mode=0700", "8m", &["huge pages", "are free", "vm.nr_hugepages"]),
        (
            "hugetlbfs",
            "mode=0700",
            "64m",
            &["huge pages", "are free", "vm.nr_hugepages"],
        ),
    ] {
        let words = mounted(kind, options);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let has_pages = std::fs::read_to_string("/proc/meminfo").is_ok_and(|info| !info.contains("HugePages_Free:        0\n"));
        if kind == "hugetlbfs" && has_pages {
            harness::skip("hugetlbfs without pages", "this machine has some");
            continue;
        }
        if !can("a region on a file system without room", &words) {
            continue;
        }
        let listen = format!("127.0.0.1:{}", free_port());
        let serve = ["serve", "--region", "/mnt/region", "--memory", memory, "--listen", &listen];
        is_refused(keyway(&words, &serve), 2, says);
    }
}

/// A ring that the limit of locked memory forbids, and what only root may do, are named with limit and remedy.
#[test]
#[cfg_attr(not(feature = "kernel"), ignore = "this build has no kernel door")]
fn a_user_without_rights_is_told_what_is_missing() {
    let words = [&AS_USER[..], &["prlimit", "--memlock=8192:8192"]].concat();
    if !can("a start of another user", &words) {
        return;
    }
    let folder = open_folder();
    let program = program_in(&folder);
    let command = |arguments: &str| command_of(&program, &words, &arguments.split(' ').collect::<Vec<_>>());
    let listen = format!("127.0.0.1:{}", free_port());
    let serve = |event_loop: &str| {
        command(&format!(
            "serve --region memfd --memory 4m --threads 1 --listen {listen} --event-loop {event_loop}"
        ))
    };
    let (_, said) = run_to_end(&mut serve("io_uring"), DEADLINE);
    if !said.contains("Cannot allocate memory") {
        harness::skip("a ring beyond the limit of locked memory", "this system gives no rings");
    } else {
        is_refused(
            serve("io_uring"),
            71,
            &[
                "io_uring",
                "this user may lock 8 KiB",
                "`ulimit -l`",
                "LimitMEMLOCK=",
                "leave --event-loop out",
            ],
        );
    }
    Served::start(serve("epoll")).0.stop();
    is_refused(
        command("kernel attach lo --udp 127.0.0.1"),
        71,
        &[
            "needs root, or CAP_BPF",
            "this process lacks CAP_BPF",
            "become root",
            "--kernel-pinned",
        ],
    );
    is_refused(
        command("kernel status"),
        1,
        &["nothing is pinned at /sys/fs/bpf/keyway", "keyway kernel attach"],
    );
}

/// A measurement that the limits of its user forbid ends with the limit and what helps.
#[test]
fn a_measurement_without_threads_or_descriptors_says_so() {
    let threads = [&AS_USER[..], &["prlimit", "--nproc=1:1"]].concat();
    let files = ["prlimit", "--nofile=24:24"];
    let folder = open_folder();
    let program = program_in(&folder);
    let measure = "bench --workload get-128b --items 100 --seconds 0.05 --warmup 0.01 --repeat 1 --against none --door";
    for (words, door, says) in [
        (
            &threads[..],
            "library --connections 1",
            "may have 1 processes and threads in all (RLIMIT_NPROC, ulimit -u)",
        ),
        (
            &threads[..],
            "tcp --connections 1",
            "may have 1 processes and threads in all (RLIMIT_NPROC, ulimit -u)",
        ),
        (&files[..], "tcp --connections 64", "ulimit -n"),
        (&["env", "TMPDIR=/proc"], "tcp --connections 1", "cannot make /proc/"),
        // It listens when this is found out.
        (
            &["env"],
            "tcp --connections 1 --server-options=--durable",
            "durable mode (--durable) needs",
        ),
    ] {
        if !can("a measurement under limits", words) {
            return;
        }
        let line = format!("{measure} {door}");
        let arguments: Vec<&str> = line.split(' ').collect();
        let (status, output) = run_to_end(&mut command_of(&program, words, &arguments), DEADLINE);
        assert!(!status.success() && output.contains(says), "{door}: {status}: {output}");
        assert!(!output.contains("panicked"), "{door}: {output}");
    }
}
