//! The HTTP port of a running server: what it answers, what it refuses, when it is ready, and that it ends with the server.
//! Guards: P48

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;

use harness::{
    DEADLINE, HttpAnswer, Kind, Scratch, ServeOptions, Server, Transport, free_port, http_over, keyway_binary, run_to_end, skip,
    wait_until,
};
use monitoring::Monitored;
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

fn raw(monitored: &Monitored, request: &str) -> HttpAnswer {
    let stream = TcpStream::connect(monitored.http).expect("a connection");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    http_over(stream, request).unwrap_or_else(|error| panic!("{request:?}: {error}"))
}

#[test]
fn paths_methods_and_headers() {
    let monitored = Monitored::start(&ServeOptions::default());
    let log = monitored.server.log();
    assert!(
        log.contains(&format!("http {}", monitored.http)),
        "the ready line names it: {log}"
    );
    for (path, status, kind, word) in [
        ("/", 200, "text/html", "Hit ratio"),
        ("/?x=y", 200, "text/html", "Hit ratio"),
        ("/metrics", 200, "text/plain; version=0.0.4", "memcached_up 1"),
        ("/healthz", 200, "text/plain", "ok"),
        ("/readyz", 200, "text/plain", "ready"),
        ("/state.json", 200, "application/json", "\"get_hits\":0"),
        ("/state.json?after=99999999", 200, "application/json", "\"samples\":[]"),
        ("/nothing", 404, "text/plain", "/metrics"),
    ] {
        let answer = monitored.get(path);
        assert_eq!(answer.status, status, "{path}");
        assert!(
            answer.header("content-type").starts_with(kind),
            "{path}: {:?}",
            answer.headers
        );
        assert!(answer.body.contains(word), "{path}: {}", answer.body);
        assert_eq!(answer.header("cache-control"), "no-store", "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("connection"), "close", "{path}");
        assert_eq!(answer.header("content-length"), answer.body.len().to_string(), "{path}");
        let head = raw(&monitored, &format!("HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert_eq!((head.status, head.body.as_str()), (status, ""), "HEAD {path}");
        assert_eq!(head.header("content-type"), answer.header("content-type"), "HEAD {path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "FLUSH"] {
        let answer = raw(&monitored, &format!("{method} / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert_eq!((answer.status, answer.header("allow")), (405, "GET, HEAD"), "{method}");
    }
    let counted = monitored.numbers();
    assert_eq!(
        counted.of("keyway_http_requests_total{path=\"/healthz\",status=\"200\"}"),
        2.0
    );
    assert_eq!(counted.of("keyway_http_requests_total{path=\"other\",status=\"404\"}"), 2.0);
}

/// Enemy: a page of another site, whose name leads to this port (DNS rebinding).
#[test]
fn a_request_for_the_host_of_another_site_gets_no_answer() {
    let monitored = Monitored::start(&ServeOptions {
        keyway_arguments: ["--http-host", "cache.example"].map(str::to_owned).to_vec(),
        ..ServeOptions::default()
    });
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    for path in ["/", "/metrics", "/state.json", "/healthz"] {
        for (host, status) in [
            ("localhost", 200),
            ("cache.example:11212", 200),
            (name.trim(), 200),
            ("evil.example", 421),
            ("evil.example:11212", 421),
        ] {
            let answer = raw(&monitored, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(answer.status, status, "{path} of {host}: {}", answer.body);
            assert_eq!(answer.body.contains("--http-host"), status == 421, "{}", answer.body);
        }
        let answer = raw(
            &monitored,
            &format!("GET http://evil.example{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        );
        assert_eq!(answer.status, 421, "{path}");
    }
}

fn state(monitored: &Monitored) -> Value {
    serde_json::from_str(&monitored.get("/state.json").body).expect("JSON")
}

/// What a field's rates come to over all samples of the fine step; and of a door, the operations whose time was measured.
fn over_all(state: &Value, field: &str) -> (f64, u64) {
    let history = &state["history"];
    let fields = history["fields"].as_array().expect("fields");
    let place = |name: &str| fields.iter().position(|field| field == name).expect("a field");
    let (ms, of, times) = (place("ms"), place(field), place("times"));
    let door = place(field) - place("library");
    let samples = history["steps"][0]["samples"].as_array().expect("samples").iter();
    samples.fold((0.0, 0), |(sum, measured), sample| {
        let rate = sample[of].as_f64().expect("a rate") * sample[ms].as_f64().expect("a time") / 1000.0;
        let times: Vec<u64> = sample[times]
            .as_array()
            .expect("times")
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        let counted = times
            .chunks_exact(3)
            .filter(|time| time[0] == door as u64)
            .map(|time| time[2]);
        (sum + rate, measured + counted.sum::<u64>())
    })
}

/// Requests of each door at most by which a test finds out that its server is ready.
const STARTING: u32 = 4;

/// Rates are rounded, and the milliseconds that they are of.
fn is_about(sum: f64, operations: f64) -> bool {
    (sum - operations).abs() < 0.5 + f64::from(STARTING) + operations / 50.0
}

#[test]
fn the_history_has_what_clients_did() {
    let options = ServeOptions {
        transport: Transport::Udp,
        ..ServeOptions::default()
    };
    let monitored = Monitored::start(&options);
    // By its answer the history has begun.
    assert_eq!(over_all(&state(&monitored), "text"), (0.0, 0));
    let mut wire = monitored.server.connect(Transport::Tcp);
    for n in 0..500 {
        assert_eq!(wire.ask(&format!("set key-{n} 0 0 1\r\nx")).expect("an answer"), "STORED");
        if n < 300 {
            assert_eq!(wire.ask("mg key-0").expect("an answer"), "HD");
        }
    }
    let mut datagrams = monitored.server.connect(Transport::Udp);
    for _ in 0..40 {
        assert!(datagrams.get(false, &["absent"]).expect("an answer").is_empty());
    }
    for _ in 0..5 {
        let mut get = Command::new(keyway_binary());
        let (status, output) = run_to_end(
            get.args(["get", "key-1", "--region"]).arg(monitored.server.region()),
            DEADLINE,
        );
        assert!(status.success(), "{output}");
    }
    // Each once, whatever seconds they were in. Few of the library's calls are measured.
    let expected = [
        ("text", 500.0, Some(500)),
        ("meta", 300.0, Some(300)),
        ("udp", 40.0, Some(40)),
        ("binary", 0.0, Some(0)),
        ("library", 5.0, None),
        ("drop_in", 0.0, None),
    ];
    wait_until("the history has them", DEADLINE, || {
        let state = state(&monitored);
        let is_there = |(door, operations, measured): &(&str, f64, Option<u64>)| {
            let (sum, times) = over_all(&state, door);
            is_about(sum, *operations)
                && measured.is_none_or(|measured| (measured..=measured + u64::from(STARTING)).contains(&times))
        };
        expected.iter().all(is_there).then_some(())
    });
    let state = state(&monitored);
    for (field, sum) in [("hits", 305.0), ("misses", 40.0), ("sets", 500.0)] {
        assert!(is_about(over_all(&state, field).0, sum), "{field}: {state}");
    }
    let samples = state["history"]["steps"][0]["samples"].as_array().expect("samples");
    let last = samples.last().expect("a sample");
    let fields = state["history"]["fields"].as_array().expect("fields");
    let items = fields.iter().position(|field| field == "items").expect("the items");
    assert_eq!(last[items].as_f64(), Some(500.0), "items: {last}");
    let kinds = &state["connections"]["kinds"];
    assert_eq!((&kinds["tcp"], &kinds["tls"]), (&1.into(), &Value::Null), "{kinds}");
}

#[test]
fn a_connection_gets_one_answer() {
    let monitored = Monitored::start(&ServeOptions::default());
    let request = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n";
    let answer = raw(&monitored, &request.repeat(20));
    assert_eq!(
        (answer.status, answer.body.as_str()),
        (200, "ok\n"),
        "one answer, then the end"
    );
}

#[test]
fn a_full_region_is_not_ready_until_it_has_room() {
    let options = ServeOptions {
        memory_mb: 4,
        keyway_arguments: vec!["--no-evict".into(), "--max-item".into(), "64k".into()],
        ..ServeOptions::default()
    };
    let monitored = Monitored::start(&options);
    assert_eq!(monitored.get("/readyz").status, 200);
    let mut wires: Vec<_> = (0..4).map(|_| monitored.server.connect(Transport::Tcp)).collect();
    let mut number = 0;
    // Each worker thread has a part of the memory of its own, so what one leaves another may fill.
    let answer = wait_until("a full region is not ready", DEADLINE, || {
        for wire in &mut wires {
            for len in [16_000, 1000, 100, 1] {
                let value = "x".repeat(len);
                loop {
                    number += 1;
                    let answer = wire
                        .ask(&format!("set key-{number} 0 0 {len}\r\n{value}"))
                        .expect("an answer");
                    if answer != "STORED" {
                        assert!(answer.starts_with("SERVER_ERROR out of memory"), "{answer}");
                        break;
                    }
                }
            }
        }
        Some(monitored.get("/readyz")).filter(|answer| answer.status != 200)
    });
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(
        answer.body.contains("cannot be written") && answer.body.contains("memory"),
        "{}",
        answer.body
    );
    assert_eq!(monitored.get("/healthz").status, 200, "the process serves all the same");
    assert_eq!(wires[0].ask("flush_all").expect("an answer"), "OK");
    // It answers from its last probe for a second.
    wait_until("a region with room is ready", DEADLINE, || {
        (monitored.get("/readyz").status == 200).then_some(())
    });
}

#[test]
fn probes_leave_no_trace_in_the_statistics() {
    let monitored = Monitored::start(&ServeOptions::default());
    for _ in 0..50 {
        assert_eq!(monitored.get("/readyz").status, 200);
    }
    let server = &monitored.server;
    for name in [
        "cmd_get",
        "cmd_set",
        "get_hits",
        "get_misses",
        "delete_hits",
        "total_items",
        "curr_items",
        "bytes",
    ] {
        assert_eq!(server.stat(name), 0, "{name}");
    }
    let counted = monitored.numbers();
    let nonzero: Vec<_> = counted
        .samples
        .iter()
        .filter(|(name, value)| name.contains("commands_total") && **value != 0.0)
        .collect();
    assert!(nonzero.is_empty(), "{nonzero:?}");
    let keys = run_to_end(
        Command::new(keyway_binary()).args(["keys", "--region"]).arg(server.region()),
        DEADLINE,
    );
    assert_eq!(keys.1.trim(), "");
}

#[test]
fn doors_are_told_apart() {
    let monitored = Monitored::start(&ServeOptions::default());
    let mut wire = monitored.server.connect(Transport::Tcp);
    assert_eq!(wire.ask("set key 0 0 1\r\nx").expect("an answer"), "STORED");
    for _ in 0..3 {
        assert!(!wire.get(false, &["key"]).expect("an answer").is_empty());
    }
    let (status, output) = run_to_end(
        Command::new(keyway_binary())
            .args(["get", "key", "--region"])
            .arg(monitored.server.region()),
        DEADLINE,
    );
    assert!(status.success(), "{output}");
    let counted = monitored.numbers();
    let hits = |door: &str| {
        counted.of(&format!(
            "keyway_door_commands_total{{command=\"get\",door=\"{door}\",status=\"hit\"}}"
        ))
    };
    assert_eq!((hits("network"), hits("library")), (3.0, 1.0));
    assert_eq!(
        counted.of("keyway_door_commands_total{command=\"set\",door=\"network\",status=\"hit\"}"),
        1.0
    );
    assert_eq!(counted.of("memcached_commands_total{command=\"get\",status=\"hit\"}"), 4.0);
}

#[test]
fn the_kernel_door_has_numbers_of_its_own() {
    // The thread gets a network namespace of its own, and so does all that it starts.
    let tried = std::thread::spawn(|| -> Result<(), String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace can be made: {error}"))?;
        let (status, output) = run_to_end(Command::new("ip").args(["link", "set", "lo", "up"]), DEADLINE);
        assert!(status.success(), "{output}");
        let options = ServeOptions {
            transport: Transport::Udp,
            keyway_arguments: vec!["--kernel".into(), "lo".into()],
            ..ServeOptions::default()
        };
        let monitored = Monitored::start(&options);
        let mut wire = monitored.server.connect(Transport::Tcp);
        assert_eq!(wire.ask("set hot 0 0 1\r\nx").expect("an answer"), "STORED");
        let hits = |door: &str| {
            let counted = monitored.numbers();
            counted.of(&format!(
                "keyway_door_commands_total{{command=\"get\",door=\"{door}\",status=\"hit\"}}"
            ))
        };
        let mut asked = 0.0;
        wait_until("the program answers", DEADLINE, || {
            let mut datagrams = monitored.server.connect(Transport::Udp);
            assert_eq!(datagrams.get(false, &["hot"]).expect("an answer").len(), 1);
            asked += 1.0;
            (hits("kernel") >= 3.0).then_some(())
        });
        let counted = monitored.numbers();
        assert_eq!(hits("network") + hits("kernel"), asked);
        assert_eq!(
            hits("library"),
            0.0,
            "what the server reads for its copies is no library's command"
        );
        assert_eq!(counted.of("keyway_kernel_packets_total{verdict=\"hits\"}"), hits("kernel"));
        assert!(counted.of("keyway_kernel_copied_total") >= 1.0);
        assert_eq!(state(&monitored)["kernel_hits"].as_f64(), Some(hits("kernel")));
        assert_eq!(monitored.get("/readyz").status, 200, "{}", monitored.server.log());
        Ok(())
    });
    match tried.join() {
        Ok(Ok(())) => {}
        Ok(Err(because)) => skip("the kernel door's numbers", &because),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn memory_of_connections_is_shown_by_both() {
    const VALUE_LEN: usize = 1_000_000;
    let monitored = Monitored::start(&ServeOptions::default());
    let mut wire = monitored.server.connect(Transport::Tcp);
    let value = "x".repeat(VALUE_LEN);
    assert_eq!(
        wire.ask(&format!("set large 0 0 {VALUE_LEN}\r\n{value}")).expect("an answer"),
        "STORED"
    );
    // It asks for much and reads nothing.
    let mut unread = monitored.server.connect(Transport::Tcp);
    unread
        .send("get large\r\n".repeat(200).as_bytes())
        .expect("requests are sent");
    let held = wait_until("an unread answer is held", DEADLINE, || {
        Some(monitored.numbers().of("keyway_connection_memory_bytes")).filter(|held| *held > 0.0)
    });
    let counted = monitored.numbers();
    let each = counted.of("keyway_connection_memory_each_limit_bytes");
    let limit = counted.of("keyway_connection_memory_limit_bytes");
    assert!(held <= each && each <= limit, "{held} held, {each} each, {limit} in all");
    for (metric, stat) in [
        (
            "keyway_connection_memory_each_limit_bytes",
            "keyway_connection_memory_each_limit",
        ),
        ("keyway_connection_memory_limit_bytes", "keyway_connection_memory_limit"),
    ] {
        assert_eq!(
            counted.of(metric),
            f64::from(u32::try_from(monitored.server.stat(stat)).expect("below 4 GiB")),
            "{metric}"
        );
    }
    drop(unread);
    wait_until("the memory is given back", DEADLINE, || {
        (monitored.numbers().of("keyway_connection_memory_bytes") == 0.0).then_some(())
    });
}

#[test]
fn a_unix_socket_serves_too_and_is_removed_at_the_end() {
    let scratch = Scratch::new();
    let path = scratch.join("http");
    let options = ServeOptions {
        keyway_arguments: vec!["--http".into(), path.display().to_string()],
        ..ServeOptions::default()
    };
    let mut server = Server::start(Kind::Keyway, &options);
    let stream = UnixStream::connect(&path).expect("a connection");
    let answer = http_over(stream, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("an answer");
    assert_eq!(answer.status, 200);
    assert!(server.terminate().success(), "{}", server.log());
    assert!(!path.exists(), "{}", server.log());
}

#[test]
fn memcacheds_command_line_has_it_too() {
    let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let options = ServeOptions {
        memcached_command_line: true,
        keyway_arguments: vec!["-o".into(), format!("http={http},drop_privileges")],
        ..ServeOptions::default()
    };
    let _server = Server::start(Kind::Keyway, &options);
    assert_eq!(harness::http_get(http, "/healthz", "*/*").expect("an answer").status, 200);
}

#[test]
fn it_ends_with_the_server_at_once_even_beside_a_client_that_waits() {
    let mut monitored = Monitored::start(&ServeOptions::default());
    let _idle = TcpStream::connect(monitored.http).expect("a connection");
    assert_eq!(monitored.get("/healthz").status, 200);
    assert!(monitored.server.terminate().success(), "{}", monitored.server.log());
    assert!(TcpStream::connect(monitored.http).is_err());
}

#[test]
fn a_busy_port_is_an_error_that_names_it_and_the_region_is_left_alone() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let http = taken.local_addr().expect("its address");
    let scratch = Scratch::new();
    let region = scratch.join("region");
    let mut command = Command::new(keyway_binary());
    command.args([
        "serve",
        "--listen",
        &format!("127.0.0.1:{}", free_port()),
        "--http",
        &http.to_string(),
        "--region",
    ]);
    let (status, output) = run_to_end(command.arg(&region), DEADLINE);
    assert_eq!(status.code(), Some(71), "{output}");
    for word in [&*format!("http {http}"), "--http", "in use", "choose another"] {
        assert!(output.contains(word), "{word}: {output}");
    }
    assert!(!region.exists(), "the region is not made");
}

#[test]
fn an_address_that_others_reach_is_warned_of() {
    let address = |ip: &str| format!("{ip}:{}", free_port());
    for (ip, is_warned) in [("0.0.0.0", true), ("127.0.0.1", false)] {
        let options = ServeOptions {
            keyway_arguments: vec!["--http".into(), address(ip)],
            ..ServeOptions::default()
        };
        let server = Server::start(Kind::Keyway, &options);
        assert_eq!(server.log().contains("has no login"), is_warned, "{}", server.log());
    }
}
