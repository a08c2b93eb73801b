//! Prometheus itself, from Debian's packages, scrapes a server, without and with its request for native histograms, which come in the
//! binary format only: it then reads OpenMetrics. Its enemy: a number that Prometheus reads otherwise than it was counted.
//! Guards: P44

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Transport, free_port, http_get, program_on_path, skip};
use monitoring::Monitored;
use serde_json::Value;

/// Prometheus, which scrapes one server; it ends with its handle.
struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: Scratch,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(program: &Path, of: SocketAddr, arguments: &[&str]) -> Self {
        let (folder, address) = (Scratch::new(), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let configuration = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\n\
             scrape_configs: [{{job_name: keyway, static_configs: [{{targets: [\"{of}\"]}}]}}]\n"
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        let child = Command::new(program)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    /// The value of an expression now; `None` while there is none.
    fn value(&self, expression: &str) -> Option<f64> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = http_get(self.address, &format!("/api/v1/query?query={encoded}"), "*/*").ok()?;
        let json: Value = serde_json::from_str(&answer.body).ok()?;
        let result = json["data"]["result"].as_array()?;
        assert!(result.len() < 2, "{expression}: {json}");
        result.first()?["value"][1].as_str()?.parse().ok()
    }

    /// Waits until it has seen all.
    fn until(&self, expression: &str, wanted: f64) {
        let begun = Instant::now();
        loop {
            let value = self.value(expression);
            if value == Some(wanted) {
                return;
            }
            assert!(begun.elapsed() < DEADLINE, "{expression} is {value:?}, not {wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn prometheus_reads_what_was_counted() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let Some(program) = program_on_path("prometheus") else {
        return skip("prometheus", "it is not installed");
    };
    let monitored = Monitored::start(&ServeOptions::default());
    let mut wire = monitored.server.connect(Transport::Tcp);
    assert_eq!(wire.ask("set key 0 0 5\r\nvalue").unwrap(), "STORED");
    for _ in 0..300 {
        assert_eq!(wire.get(false, &["key"]).unwrap().len(), 1);
        assert_eq!(wire.get(false, &["none"]).unwrap().len(), 0);
    }
    let stats = wire.stats("latency").unwrap();
    let stat = |name: &str| {
        let (_, value) = stats
            .iter()
            .find(|(known, _)| known == name)
            .unwrap_or_else(|| panic!("{name}: {stats:?}"));
        value.parse::<f64>().unwrap()
    };
    for arguments in [&[][..], &["--enable-feature=native-histograms"]] {
        let prometheus = Prometheus::start(&program, monitored.http, arguments);
        prometheus.until("memcached_commands_total{command=\"get\",status=\"hit\"}", 300.0);
        prometheus.until("memcached_commands_total{command=\"get\",status=\"miss\"}", 300.0);
        prometheus.until("memcached_current_items", 1.0);
        let sum = "keyway_latency_seconds_sum{door=\"text\",verb=\"get\"}";
        prometheus.until("keyway_latency_seconds_count{door=\"text\",verb=\"get\"}", 600.0);
        prometheus.until(sum, monitored.numbers().of(sum));
        let quantile = prometheus.value("histogram_quantile(0.5, keyway_latency_seconds_bucket{door=\"text\",verb=\"get\"})");
        // Both are somewhere in the bucket that has the median, whose end is at most 1.5 times its beginning.
        let ratio = quantile.unwrap() * 1e9 / stat("text:get:p50_ns");
        assert!((0.7..1.3).contains(&ratio), "{arguments:?}: {ratio}");
    }
}
