//! `/metrics` beside prometheus/memcached_exporter at the same server, and in the hands of Prometheus's own parsers.
//! Guards: P44

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use clients::prepare::{self, Venv};
use harness::{DEADLINE, Kind, Scratch, ServeOptions, Transport, free_port, http_get, run_to_end, say, skip, wait_until};
use monitoring::{Monitored, Numbers};

/// Metrics that differ between two readings, because time passes and because the exporter is a client itself.
const MOVING: [&str; 10] = [
    "memcached_time_seconds",
    "memcached_uptime_seconds",
    "memcached_process_user_cpu_seconds_total",
    "memcached_process_system_cpu_seconds_total",
    "memcached_read_bytes_total",
    "memcached_written_bytes_total",
    "memcached_connections_total",
    "memcached_current_connections",
    "memcached_slab_items_age_seconds",
    "memcached_slab_hot_age_seconds",
];

/// Metrics of the exporter that have no meaning for a store without LRU lists, a crawler and slab pages of several kinds. The port leaves them
/// out (`docs/metrics.md`). Beginnings of samples' names.
const WITHOUT_MEANING: [&str; 11] = [
    "memcached_lru_crawler_",
    "memcached_slab_chunks_free_end",
    "memcached_slab_hot_items",
    "memcached_slab_warm_items",
    "memcached_slab_warm_age_seconds",
    "memcached_slab_items_moves_",
    "memcached_slab_items_crawler_reclaimed_total",
    "memcached_slab_items_evicted_nonzero_total",
    "memcached_slab_items_evicted_time_seconds",
    "memcached_slab_items_tailrepairs_total",
    "memcached_slab_lru_hits_total{lru=\"",
];

/// A metric that is a counter there and a gauge here, because OpenMetrics demands `_total` in a counter's name.
const GAUGE_HERE: &str = "memcached_uptime_seconds";

/// An exporter at a server; it ends with its handle.
struct Exporter {
    child: Child,
    address: SocketAddr,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Exporter {
    fn start(program: &Path, of: SocketAddr) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let child = Command::new(program)
            .arg(format!("--memcached.address={of}"))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let exporter = Self { child, address };
        wait_until("the exporter answers", DEADLINE, || exporter.numbers());
        exporter
    }

    fn numbers(&self) -> Option<Numbers> {
        let page = http_get(self.address, "/metrics", "text/plain").ok()?.body;
        let own = page
            .lines()
            .filter(|line| line.trim_start_matches("# TYPE ").starts_with("memcached_"));
        let numbers: String = own
            .filter(|line| !line.contains("memcached_exporter"))
            .map(|line| format!("{line}\n"))
            .collect();
        Some(Numbers::parse(&numbers)).filter(|numbers| numbers.samples.contains_key("memcached_up"))
    }
}

fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn exporter() -> Result<&'static Path, &'static str> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("exporter");
            let package = "github.com/prometheus/memcached_exporter/cmd/memcached_exporter";
            prepare::go_tool(target(), &source, package)
        })
        .as_deref()
        .map_err(String::as_str)
}

/// Something of everything that is counted: every command that hits, misses, is refused.
fn use_everything(server: &harness::Server) {
    let mut wire = server.connect(Transport::Tcp);
    let mut ask = |request: &str, answer: &str| assert_eq!(wire.ask(request).expect(request), answer, "{request}");
    for n in 0..20 {
        ask(&format!("set key-{n} 0 0 2\r\n4{}", n % 10), "STORED");
    }
    ask("get absent", "END");
    ask("get absent", "END");
    ask("mg key-1", "HD");
    ask("mg key-2", "HD");
    ask("mg key-3", "HD");
    ask("incr key-1 5", "46");
    ask("incr absent 1", "NOT_FOUND");
    ask("decr key-1 1", "45");
    ask("decr key-1 1", "44");
    ask("decr absent 1", "NOT_FOUND");
    ask("delete key-5", "DELETED");
    ask("delete key-5", "NOT_FOUND");
    ask("touch key-6 100", "TOUCHED");
    ask("touch absent 100", "NOT_FOUND");
    ask("cas key-7 0 0 1 1\r\nx", "EXISTS");
    ask("cas absent 0 0 1 1\r\nx", "NOT_FOUND");
    ask("ms key-8 2 C1\r\nxx", "EX");
    let large = format!("set large 0 0 2000000\r\n{}", "x".repeat(2_000_000));
    ask(&large, "SERVER_ERROR object too large for cache");
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("flush_all").expect("flush_all"), "OK");
    for n in 0..7 {
        assert_eq!(wire.ask(&format!("set new-{n} 0 0 1\r\nx")).expect("set"), "STORED");
    }
}

#[test]
fn every_number_of_the_exporter_is_the_same_here() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let program = match exporter() {
        Ok(program) => program,
        Err(because) => return skip("memcached_exporter", because),
    };
    let monitored = Monitored::start(&ServeOptions::default());
    let exporter = Exporter::start(program, monitored.server.address());
    use_everything(&monitored.server);
    let theirs = exporter.numbers().expect("the exporter answers");
    let ours = monitored.numbers();
    assert_eq!(theirs.of("memcached_up"), 1.0);
    let mut compared = 0;
    for (name, value) in &theirs.samples {
        let metric = name.split('{').next().unwrap_or(name);
        if WITHOUT_MEANING.iter().any(|start| name.starts_with(start)) && !ours.samples.contains_key(name) {
            // Relocations are in memcached_lru_crawler_moves_to_warm_total; this name of theirs would be a counter without `_total`.
            assert!(
                *value == 0.0 || metric == "memcached_slab_items_moves_to_warm",
                "{name} is {value} and left out"
            );
            continue;
        }
        let here = ours.of(name);
        if MOVING.contains(&metric) {
            assert!(
                (here - value).abs() <= 65_536.0,
                "{name}: {here} here, {value} at the exporter"
            );
        } else {
            assert_eq!(here, *value, "{name}");
        }
        let kind = &ours.types[metric];
        if metric == GAUGE_HERE {
            assert_eq!(kind, "gauge");
        } else if !metric.starts_with("memcached_slab_mem_requested") {
            assert_eq!(kind, &theirs.types[metric], "{metric}");
        }
        compared += 1;
    }
    assert!(compared > 60, "{compared}");
    for (name, least) in [
        ("memcached_commands_total{command=\"get\",status=\"hit\"}", 3.0),
        ("memcached_commands_total{command=\"get\",status=\"miss\"}", 2.0),
        ("memcached_commands_total{command=\"set\",status=\"hit\"}", 27.0),
        ("memcached_commands_total{command=\"cas\",status=\"badval\"}", 2.0),
        ("memcached_commands_total{command=\"decr\",status=\"hit\"}", 2.0),
        ("memcached_item_too_large_total", 1.0),
        ("memcached_items_total", 27.0),
    ] {
        assert!(ours.of(name) >= least, "{name}: {}", ours.of(name));
    }
    for name in ours.samples.keys().filter(|name| name.starts_with("memcached_")) {
        assert!(theirs.samples.contains_key(name), "{name} is no name of the exporter");
    }
    say(&format!("{compared} numbers of memcached_exporter are the same here"));
}

#[test]
fn a_reset_of_the_statistics_is_seen_by_both() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let monitored = Monitored::start(&ServeOptions::default());
    use_everything(&monitored.server);
    let gets = "memcached_commands_total{command=\"get\",status=\"hit\"}";
    assert_eq!(monitored.numbers().of(gets), 3.0);
    let mut wire = monitored.server.connect(Transport::Tcp);
    assert_eq!(wire.ask("stats reset").expect("stats reset"), "RESET");
    assert_eq!(monitored.numbers().of(gets), 0.0);
    assert_eq!(monitored.server.stat("get_hits"), 0);
    let door = "keyway_door_commands_total{command=\"get\",door=\"network\",status=\"hit\"}";
    assert_eq!(monitored.numbers().of(door), 3.0, "doors count since the server's start");
}

#[test]
fn prometheus_own_parsers_read_both_formats() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let packages = Venv {
        packages: &["prometheus_client==0.26.0"],
        imports: "prometheus_client.openmetrics.parser",
    };
    let python = match prepare::venv(target(), &packages) {
        Ok(python) => python,
        Err(because) => return skip("prometheus_client", &because),
    };
    let options = ServeOptions {
        transport: Transport::Udp,
        ..ServeOptions::default()
    };
    let monitored = Monitored::start(&options);
    use_everything(&monitored.server);
    // Both pages are to be of a server at rest: its clients are gone, and this path is among the counted ones.
    let sockets = f64::from(options.threads);
    wait_until("only the UDP sockets are left of the connections", DEADLINE, || {
        (monitored.numbers().of("memcached_current_connections") == sockets).then_some(())
    });
    let scratch = Scratch::new();
    let page = |name: &str, accept: &str, kind: &str| {
        let answer = monitored.get_as("/metrics", accept);
        assert!(
            answer.header("content-type").starts_with(kind),
            "{accept}: {:?}",
            answer.headers
        );
        let file = scratch.join(name);
        std::fs::write(&file, answer.body).expect("a file in the scratch folder");
        file
    };
    let open_metrics = page(
        "openmetrics",
        "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
        "application/openmetrics-text; version=1.0.0",
    );
    let text = page("text", "text/plain;version=0.0.4,*/*;q=0.1", "text/plain; version=0.0.4");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/parse.py");
    let (status, output) = run_to_end(
        Command::new(python)
            .arg(script)
            .args([open_metrics, text])
            .env("PYTHONDONTWRITEBYTECODE", "1"),
        DEADLINE,
    );
    assert!(status.success(), "{output}");
    assert!(output.lines().any(|line| line.starts_with("OK: ")), "{output}");
    say(output.trim());
}
