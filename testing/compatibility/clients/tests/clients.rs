//! Real clients, unchanged, with their ordinary API: Python (pymemcache, python-memcached), Go (gomemcache), Node (memcached),
//! and the command-line tools of libmemcached and of memcached itself.
//! Guards: P36

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clients::prepare;
use harness::{
    DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, has_kernel_door, is_across_a_network, printable, program_on_path,
    run_to_end, say, skip,
};

/// Where downloaded clients are kept.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Runs a client program against each server, and expects that it ends well and says `OK`.
fn run_client(name: &str, transport: Transport, command: impl Fn(&Server) -> Command) {
    for kind in Kind::to_test(name) {
        if is_across_a_network() && transport != Transport::Tcp {
            continue;
        }
        // The harness starts memcached without TLS.
        if transport == Transport::Tls && kind == Kind::Memcached {
            continue;
        }
        let server = Server::start(
            kind,
            &ServeOptions {
                transport,
                ..ServeOptions::default()
            },
        );
        let (status, output) = run_to_end(&mut command(&server), DEADLINE);
        assert!(
            status.success(),
            "{name} against {}: {status}\n{output}\n{}",
            kind.name(),
            server.log()
        );
        let verdict = output.lines().last().unwrap_or_default();
        assert!(verdict.starts_with("OK"), "{name} against {}:\n{output}", kind.name());
        say(&format!("{name} against {} over {transport:?}: {verdict}", kind.name()));
        if kind == Kind::Keyway && transport == Transport::Tcp && has_kernel_door() {
            let hits = server.stat("keyway_kernel_tcp_hits");
            say(&format!("{name}: {hits} answers came from the kernel"));
            // The kernel door leaves the binary protocol to the server.
            assert!(
                hits > 20 || name == "python-binary-memcached",
                "{name}: {hits} answers from the kernel"
            );
        }
    }
}

fn host_and_port(server: &Server) -> [String; 2] {
    [server.address().ip().to_string(), server.address().port().to_string()]
}

fn python() -> Result<&'static Path, &'static str> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PYTHON
        .get_or_init(|| prepare::python(target()))
        .as_deref()
        .map_err(String::as_str)
}

fn python_client(name: &str, script: &str) {
    let python = match python() {
        Ok(python) => python,
        Err(because) => return skip(name, because),
    };
    let start = || {
        let mut command = Command::new(python);
        command
            .arg(prepare::scripts().join(script))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    };
    run_client(name, Transport::Tcp, |server| {
        let mut command = start();
        command.args(host_and_port(server));
        command
    });
    run_client(name, Transport::Unix, |server| {
        let mut command = start();
        command.arg(server.socket());
        command
    });
}

#[test]
fn pymemcache() {
    python_client("pymemcache", "pymemcache_client.py");
}

#[test]
fn pymemcache_over_tls() {
    let python = match python() {
        Ok(python) => python,
        Err(because) => return skip("pymemcache over TLS", because),
    };
    run_client("pymemcache", Transport::Tls, |server| {
        let (address, authority) = server.tls();
        let mut command = Command::new(python);
        command.arg(prepare::scripts().join("pymemcache_client.py"));
        command.args([address.ip().to_string(), address.port().to_string()]);
        command.arg(authority).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    });
}

#[test]
fn python_memcached() {
    python_client("python-memcached", "python_memcached_client.py");
}

#[test]
fn python_binary_memcached() {
    python_client("python-binary-memcached", "binary_client.py");
}

/// SASL with python-binary-memcached: as memcached has it (`-S`), and as `keyway serve` has it, with a hashed password and a reader.
#[test]
fn python_binary_memcached_with_sasl() {
    // Passwords cross a network only under TLS.
    if is_across_a_network() {
        return;
    }
    let python = match python() {
        Ok(python) => python,
        Err(because) => return skip("python-binary-memcached with SASL", because),
    };
    let scratch = Scratch::new();
    let mut hasher = Command::new("/bin/sh");
    hasher.args([
        "-c",
        &format!("echo secret | {} password ann", harness::keyway_binary().display()),
    ]);
    let (status, hashed) = run_to_end(&mut hasher, DEADLINE);
    assert!(status.success() && hashed.starts_with("ann:$argon2id$"), "{hashed}");
    for (name, users, memcached_command_line) in [
        ("keyway serve", format!("{hashed}reader:secret:ro\n"), false),
        ("keyway memcached -S -Y", "ann:secret\n".to_owned(), true),
    ] {
        let file = scratch.join("users");
        std::fs::write(&file, &users).expect("a file");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("its mode can be set");
        let file = file.display().to_string();
        let options = match memcached_command_line {
            true => ["-S", "-Y", &file].map(str::to_owned).to_vec(),
            false => ["--auth-file", &file].map(str::to_owned).to_vec(),
        };
        let server = Server::start(
            Kind::Keyway,
            &ServeOptions {
                memcached_command_line,
                keyway_arguments: options,
                ..ServeOptions::default()
            },
        );
        let mut command = Command::new(python);
        command
            .arg(prepare::scripts().join("sasl_client.py"))
            .args(host_and_port(&server));
        command.args((!memcached_command_line).then_some("reader"));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let (status, output) = run_to_end(&mut command, DEADLINE);
        let verdict = output.lines().last().unwrap_or_default();
        assert!(
            status.success() && verdict.starts_with("OK"),
            "{name}: {output}\n{}",
            server.log()
        );
        say(&format!("python-binary-memcached with SASL against {name}: {verdict}"));
    }
}

#[test]
fn gomemcache() {
    let program = match prepare::go_program(target()) {
        Ok(program) => program,
        Err(because) => return skip("gomemcache", &because),
    };
    run_client("gomemcache", Transport::Tcp, |server| {
        let mut command = Command::new(&program);
        command.arg(server.address().to_string());
        command
    });
    run_client("gomemcache", Transport::Tls, |server| {
        let (address, authority) = server.tls();
        let mut command = Command::new(&program);
        command.arg(address.to_string()).arg(authority);
        command
    });
    run_client("gomemcache", Transport::Unix, |server| {
        let mut command = Command::new(&program);
        command.arg(server.socket());
        command
    });
}

#[test]
fn node_memcached() {
    let (node, place) = match prepare::node_program(target()) {
        Ok(found) => found,
        Err(because) => return skip("memcached for Node", &because),
    };
    run_client("memcached for Node", Transport::Tcp, |server| {
        let mut command = Command::new(&node);
        command.arg(place.join("client.js")).arg(server.address().to_string());
        command
    });
}

/// One of libmemcached's tools; what it prints.
fn tool(program: &Path, server: &Server, arguments: &[&str]) -> (bool, String) {
    let servers = format!("--servers={}", server.address());
    let (status, output) = run_to_end(Command::new(program).arg(servers).args(arguments), DEADLINE);
    (status.success(), output)
}

#[test]
fn tools_of_libmemcached() {
    const NAMES: [&str; 9] = [
        "memccat",
        "memccp",
        "memcstat",
        "memcrm",
        "memcexist",
        "memctouch",
        "memcdump",
        "memcping",
        "memcflush",
    ];
    let mut programs = Vec::new();
    for name in NAMES {
        match program_on_path(name) {
            Some(program) => programs.push(program),
            None => return skip("libmemcached's tools", &format!("{name} is not installed")),
        }
    }
    let [cat, cp, stat, rm, exist, touch, dump, ping, flush] = &programs[..] else {
        unreachable!("nine names")
    };
    let scratch = Scratch::new();
    let (small, large) = (scratch.join("small.txt"), scratch.join("large.bin"));
    std::fs::write(&small, "grüße ☃\n").expect("a file");
    let block: Vec<u8> = (0..700_000_u32).map(|n| u8::try_from(n * 31 % 251).unwrap_or(0)).collect();
    std::fs::write(&large, &block).expect("a file");
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();

    for kind in Kind::to_test("libmemcached's tools") {
        let server = Server::start(kind, &ServeOptions::default());
        let expect = |what: &str, (ok, output): (bool, String), due: bool| {
            assert_eq!(ok, due, "{what} against {}: {output}", kind.name());
            output
        };
        expect("memcping", tool(ping, &server, &[]), true);
        expect(
            "memccp",
            tool(cp, &server, &["--expire=1000", "--flag=7", &path(&small), &path(&large)]),
            true,
        );
        let text = expect("memccat", tool(cat, &server, &["small.txt"]), true);
        assert!(text.starts_with("grüße ☃\n"), "memccat against {}: {text}", kind.name());
        let flags = expect("memccat --flags", tool(cat, &server, &["--flags", "small.txt"]), true);
        assert!(flags.contains('7'), "memccat --flags against {}: {flags}", kind.name());
        let copy = scratch.join("copy");
        expect(
            "memccat --file",
            tool(cat, &server, &[&format!("--file={}", path(&copy)), "large.bin"]),
            true,
        );
        let copied = std::fs::read(&copy).expect("a file");
        assert!(
            copied.starts_with(&block),
            "memccat --file against {}: {}",
            kind.name(),
            printable(&copied)
        );
        expect("memcexist", tool(exist, &server, &["small.txt"]), true);
        expect("memcexist of a miss", tool(exist, &server, &["none"]), false);
        expect("memctouch", tool(touch, &server, &["--expire=500", "small.txt"]), true);
        let stats = expect("memcstat", tool(stat, &server, &[]), true);
        for name in ["curr_items", "bytes", "threads", "version", "evictions", "pid"] {
            assert!(
                stats.contains(&format!("{name}:")),
                "memcstat against {}: no {name} in\n{stats}",
                kind.name()
            );
        }
        // memcached of today knows no `stats cachedump` order that memcdump could rely on: that it ends is enough
        let _ = tool(dump, &server, &[]);
        expect("memcrm", tool(rm, &server, &["small.txt"]), true);
        expect("memcexist after memcrm", tool(exist, &server, &["small.txt"]), false);
        expect("memcflush", tool(flush, &server, &[]), true);
        expect("memcexist after memcflush", tool(exist, &server, &["large.bin"]), false);
        say(&format!("libmemcached's tools against {}: nine of them", kind.name()));
    }
}

/// libmemcached's own check of what a server is capable of, in the text protocol.
///
/// Of 27 checks, two want `ERROR` for a `delete` without a key; memcached's parser of today says `CLIENT_ERROR bad command line
/// format`, and so does Keyway.
#[test]
fn memccapable() {
    // It asks for `verbosity`, which is for clients on the server's machine.
    if is_across_a_network() {
        return;
    }
    let Some(program) = program_on_path("memccapable") else {
        return skip("memccapable", "it is not installed");
    };
    for kind in Kind::to_test("memccapable") {
        let server = Server::start(kind, &ServeOptions::default());
        let [host, port] = host_and_port(&server);
        let mut command = Command::new(&program);
        command.args(["-a", "-h", &host, "-p", &port]);
        let (_, output) = run_to_end(&mut command, DEADLINE);
        let failed: Vec<&str> = output
            .lines()
            .filter(|line| line.to_lowercase().contains("[fail]") && !line.contains("ascii delete"))
            .collect();
        let passed = output.lines().filter(|line| line.to_lowercase().contains("[pass]")).count();
        assert!(
            failed.is_empty() && passed > 20,
            "memccapable against {}: {passed} passed, {failed:?} failed\n{output}",
            kind.name()
        );
        say(&format!("memccapable against {}: {passed} passed", kind.name()));
    }
}

/// memcached's own tool, which Debian installs beside it.
#[test]
fn memcached_tool() {
    let tool = Path::new("/usr/share/memcached/scripts/memcached-tool");
    if !tool.exists() {
        return skip("memcached-tool", "it is not installed");
    }
    if program_on_path("perl").is_none() {
        return skip("memcached-tool", "perl is not installed");
    }
    for kind in Kind::to_test("memcached-tool") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut wire = server.connect(Transport::Tcp);
        for n in 0..50 {
            assert_eq!(
                wire.ask(&format!("set tool:{n} {n} 1000 5\r\nvalue")).expect("an answer"),
                "STORED"
            );
        }
        let run = |mode: &str| {
            let (status, output) = run_to_end(
                Command::new("perl").arg(tool).arg(server.address().to_string()).arg(mode),
                DEADLINE,
            );
            assert!(
                status.success(),
                "memcached-tool {mode} against {}: {status}\n{output}",
                kind.name()
            );
            output
        };
        let stats = run("stats");
        for name in ["curr_items", "limit_maxbytes", "uptime", "get_hits"] {
            assert!(
                stats.contains(name),
                "memcached-tool stats against {}: no {name} in\n{stats}",
                kind.name()
            );
        }
        assert!(run("settings").contains("maxbytes"));
        let display = run("display");
        assert!(
            display.contains("Item_Size") && display.lines().count() >= 2,
            "memcached-tool display against {}:\n{display}",
            kind.name()
        );
        let dump = run("dump");
        for n in 0..50 {
            let set = format!("add tool:{n} {n} ");
            assert!(
                dump.contains(&set),
                "memcached-tool dump against {}: no `{set}` in\n{dump}",
                kind.name()
            );
        }
        let keys = run("keys");
        assert_eq!(
            keys.matches("key=").count(),
            50,
            "memcached-tool keys against {}:\n{keys}",
            kind.name()
        );
        run("sizes");
        say(&format!(
            "memcached-tool against {}: stats, settings, display, dump, keys, sizes",
            kind.name()
        ));
    }
}

/// Processes of one client.
const PROCESSES: usize = 6;
/// Their keys, seconds for which a value is fresh, milliseconds that it takes to compute, and seconds that they work.
const WORK: [&str; 4] = ["10", "2", "50", "7"];

/// What the processes of one client have done: computations, gets, and the highest of their 99th percentiles of a get of a key that is always
/// there, microseconds.
fn held(server: &Server, command: &dyn Fn() -> Command) -> [u64; 3] {
    let [host, port] = host_and_port(server);
    std::thread::scope(|scope| {
        let processes: Vec<_> = (0..PROCESSES)
            .map(|_| {
                let mut command = command();
                command.args([&host, &port]).args(WORK);
                scope.spawn(move || run_to_end(&mut command, DEADLINE))
            })
            .collect();
        let mut all = [0; 3];
        for process in processes {
            let (status, output) = process.join().expect("a process");
            assert!(status.success(), "{status}: {output}");
            let numbers: Vec<u64> = output.split_whitespace().map(|word| word.parse().expect(&output)).collect();
            let [computed, gets, slowest] = numbers[..] else {
                panic!("{output}")
            };
            all = [all[0] + computed, all[1] + gets, all[2].max(slowest)];
        }
        all
    })
}

/// One client of all computes what has expired, and the others get its value, although none of them knows of that.
#[test]
fn misses_are_held_for_clients_as_they_are() {
    if has_kernel_door() || is_across_a_network() {
        return;
    }
    let python = prepare::python(target());
    let go = prepare::go_program(target());
    let php = program_on_path("php").ok_or("php is not installed".to_owned());
    let scripts = prepare::scripts();
    let with = |program: &Path, argument: &Path| {
        let mut command = Command::new(program);
        command.arg(argument);
        command
    };
    type Start = Box<dyn Fn() -> Command>;
    let clients: [(&str, Result<Start, String>); 3] = [
        (
            "pymemcache",
            python.map(|python| -> Start { Box::new(move || with(&python, &scripts.join("hold.py"))) }),
        ),
        (
            "gomemcache",
            go.map(|go| -> Start { Box::new(move || with(&go, Path::new("hold"))) }),
        ),
        (
            "php-memcached",
            php.map(|php| -> Start { Box::new(move || with(&php, &prepare::scripts().join("hold.php"))) }),
        ),
    ];
    for (name, command) in clients {
        let command = match command {
            Ok(command) => command,
            Err(because) => {
                skip(name, &because);
                continue;
            }
        };
        let mut found = Vec::new();
        for hold in [&[][..], &["--hold-misses", "5000:user:"]] {
            let server = Server::start(
                Kind::Keyway,
                &ServeOptions {
                    keyway_arguments: hold.iter().map(|argument| (*argument).to_owned()).collect(),
                    ..ServeOptions::default()
                },
            );
            found.push(held(&server, &*command));
            if !hold.is_empty() {
                let of = |what: &str| server.stat(&format!("keyway_misses_{what}:user:"));
                assert!(of("claimed") > 0, "{name}: no miss was seen");
                assert!(
                    found[1][0] <= of("claimed") + of("in_vain"),
                    "{name}: {} and {}",
                    of("claimed"),
                    of("in_vain")
                );
            }
        }
        let [without, with] = [found[0], found[1]];
        say(&format!(
            "{name}: {} computations at {} gets, p99 of another key {} µs; held: {} at {}, {} µs",
            without[0], without[1], without[2], with[0], with[1], with[2]
        ));
    }
}
