//! Command lines of memcached, and what they mean here.

use std::ffi::OsString;
use std::time::Duration;

use keyway_server::UnixSocket;

use super::*;
use crate::exit::USAGE;
use keyway_server::HttpAddress;

fn asked(line: &str) -> Result<CommandLine, Failure> {
    parse(line.split_whitespace().map(OsString::from))
}

fn plan(line: &str) -> Plan {
    match asked(line) {
        Ok(CommandLine::Serve(plan)) => *plan,
        other => panic!("{line}: {other:?}"),
    }
}

fn tcp(line: &str) -> Vec<String> {
    plan(line).config.tcp.iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_memcacheds() {
    let plan = plan("");
    assert_eq!((plan.options.memory, plan.options.item_size_max), (Some(64 << 20), None));
    let config = &plan.config;
    assert_eq!(
        (
            config.connections_max,
            config.threads,
            config.backlog,
            config.requests_per_turn
        ),
        (1024, 4, 1024, 20)
    );
    assert!(plan.options.flush.is_none() && config.connections_fast && config.dump_enabled && !config.shutdown_enabled);
    assert_eq!(tcp(""), ["0.0.0.0:11211", "[::]:11211"]);
}

#[test]
fn flags_are_bundled_attached_and_named_as_getopt_allows() {
    for line in [
        "-m 128 -c 50 -vv -F",
        "-m128 -c50 -vvF",
        "-Fvvm128 -c 50",
        "--memory-limit=128 --conn-limit 50 -v -v -F",
    ] {
        let plan = plan(line);
        assert_eq!(
            (plan.options.memory, plan.config.connections_max),
            (Some(128 << 20), 50),
            "{line}"
        );
        assert_eq!((plan.config.verbosity, plan.options.flush), (2, Some(false)), "{line}");
    }
    assert_eq!(plan("--memory-l=1g").options.memory, Some(1 << 30));
    assert!(plan("-o drop_privileges").sandbox && !plan("-o no_drop_privileges").sandbox);
    assert_eq!(plan("--verbose=1 --disable-f").config.verbosity, 1);
    assert_eq!(asked("--disable").unwrap_err().code, USAGE);
    assert_eq!(asked("--nonsense").unwrap_err().code, USAGE);
    assert_eq!(asked("-q").unwrap_err().code, USAGE);
    assert_eq!(asked("-m").unwrap_err().code, USAGE);
}

#[test]
fn real_command_lines_of_the_wild() {
    // Debian's unit, a container image, and a configuration from memcached 1.4.
    let debian = plan("-m 64 -p 11211 -u memcache -l 127.0.0.1 -l ::1 -P /var/run/memcached/memcached.pid");
    assert_eq!(debian.user.as_deref(), Some("memcache"));
    assert_eq!(
        tcp("-m 64 -p 11211 -u memcache -l 127.0.0.1 -l ::1"),
        ["127.0.0.1:11211", "[::1]:11211"]
    );
    assert_eq!(plan("-m 1024m -I 5m -o modern").options.memory, Some(1 << 30));
    let old =
        plan("-d -m 512 -f 1.08 -n 72 -o slab_reassign,slab_automove,lru_crawler,hash_algorithm=murmur3,maxconns_fast -U 0");
    assert!(
        old.daemon && old.warnings.iter().all(|warning| warning.contains("root")),
        "{:?}",
        old.warnings
    );
}

#[test]
fn listeners_come_in_memcacheds_forms() {
    assert_eq!(tcp("-l 127.0.0.1:1,127.0.0.2 -p 7"), ["127.0.0.1:1", "127.0.0.2:7"]);
    assert_eq!(tcp("-l proto[ascii]:tag[web]:127.0.0.1:5"), ["127.0.0.1:5"]);
    assert_eq!(tcp("-l 127.0.0.1 -l 127.0.0.1:11211"), ["127.0.0.1:11211"]);
    assert_eq!(tcp("-l tag_web_:[::1]:5"), ["[::1]:5"]);
    assert_eq!(tcp("-p -1 -l 127.0.0.1"), ["127.0.0.1:0"]);
    assert_eq!(plan("-p -1").place, Some(keyway_cache::Place::Memfd));
    assert!(asked("-l proto[binary]:127.0.0.1").is_err());
    assert!(asked("-p 70000").is_err());
}

#[test]
fn a_unix_socket_turns_tcp_off_unless_both_are_asked_for() {
    let only = plan("-s /tmp/s -a 0777");
    assert_eq!(
        only.config.unix,
        Some(UnixSocket {
            path: "/tmp/s".into(),
            mode: 0o777
        })
    );
    assert!(only.config.tcp.is_empty());
    assert_eq!(tcp("-s /tmp/s -l 127.0.0.1"), ["127.0.0.1:11211"]);
    assert!(tcp("-s /tmp/s -p 0").is_empty());
    let warned = |line: &str| {
        plan(line)
            .warnings
            .iter()
            .any(|warning| warning.contains("-p 0 leaves no socket"))
    };
    assert!(warned("-p 0") && !warned("-s /tmp/s -p 0") && !warned("-p 0 -U 7"));
}

#[test]
fn udp_is_off_until_asked_for_and_answers_this_machine_until_told_otherwise() {
    let udp = |line: &str| plan(line).config.udp.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(udp("").is_empty() && udp("-U 0").is_empty() && udp("-l 127.0.0.1:5 -U 0").is_empty());
    assert_eq!(udp("-U 7"), ["0.0.0.0:7", "[::]:7"]);
    assert_eq!(tcp("-U 7"), ["0.0.0.0:7", "[::]:7"], "TCP follows, as in memcached");
    assert_eq!(tcp("-U 7 -p 8 -l 127.0.0.1"), ["127.0.0.1:8"]);
    assert_eq!(udp("-U 7 -p 8 -l 127.0.0.1"), ["127.0.0.1:7"]);
    assert_eq!(udp("-U -1 -l ::1"), ["[::1]:0"]);
    assert_eq!(tcp("-U -1 -l ::1"), ["[::1]:0"]);
    assert_eq!(tcp("-U -1 -p 5 -l ::1"), ["[::1]:5"]);
    let warned = |line: &str| plan(line).warnings.iter().any(|warning| warning.contains("udp_allow"));
    assert!(warned("-U 7") && !warned("-U 7 -l 127.0.0.1") && !warned(""));
    let allowing = plan("-U 7 -o udp_allow=10.0.0.0/8,modern,udp_allow=::1");
    let allowed: Vec<_> = allowing.config.udp_allow.iter().map(ToString::to_string).collect();
    assert_eq!(allowed, ["10.0.0.0/8", "::1/128"]);
    assert!(!allowing.warnings.iter().any(|warning| warning.contains("udp_allow")));
}

#[test]
fn tls_is_on_all_tcp_addresses_but_those_that_say_otherwise() {
    let files = "-o ssl_chain_cert=c.pem,ssl_key=k.pem,ssl_ca_cert=a.pem,ssl_verify_mode=1,ssl_min_version=3,ssl_wbuf_size=32";
    let addresses = |line: &str| {
        let config = plan(&format!("{line} {files}")).config;
        let texts = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        (texts(&config.tcp), texts(&config.tls_tcp))
    };
    let pair = |plain: &str, secure: &str| (plain.to_owned(), secure.to_owned());
    assert_eq!(addresses("-Z"), pair("", "0.0.0.0:11211 [::]:11211"));
    assert_eq!(
        addresses("-Z -l 127.0.0.1,notls:127.0.0.1:7"),
        pair("127.0.0.1:7", "127.0.0.1:11211")
    );
    assert_eq!(addresses("-Z -l notls:127.0.0.1"), pair("127.0.0.1:11211", ""));
    let tls = plan(&format!("-Z {files}")).config.tls.unwrap();
    assert_eq!((tls.certificate, tls.key), ("c.pem".into(), "k.pem".into()));
    assert_eq!(tls.client_certificates, ClientCertificates::Optional);
    assert_eq!(tls.min_version, TlsVersion::V1_3);
    assert!(plan("-o ssl_key=k.pem").config.tls.is_none(), "without -Z there is no TLS");
    // As in memcached, no client is asked where nothing could verify its certificate.
    let optional = plan("-Z -o ssl_chain_cert=c.pem,ssl_key=k.pem,ssl_verify_mode=1");
    assert!(optional.warnings.iter().any(|warning| warning.contains("ssl_ca_cert")));
    assert_eq!(optional.config.tls.unwrap().client_certificates, ClientCertificates::Ignored);
}

#[test]
fn what_is_missing_is_refused_by_name() {
    for (line, word) in [
        ("-Z", "ssl_chain_cert"),
        ("-Z -o ssl_chain_cert=x", "ssl_key"),
        ("-o ssl_keyformat=2", "PEM"),
        ("-S", "MEMCACHED_SASL_PWDB"),
        ("-S -B ascii -Y users", "-S"),
        ("-B both", "-B"),
        ("-B binary -Y users", "-Y"),
        ("-U x", "-U"),
        ("-U 1 -o udp_allow=10.0.0.1/8", "10.0.0.0/8"),
        ("-U 1 -Y users", "authentication file"),
        ("-o http", "http"),
        ("-o http=127.0.0.1:0", "port 0"),
        ("-o http_host=a:1", "name of a host"),
        ("-o ext_path=/x:1G", "external storage"),
        ("-o proxy_config=x", "proxy"),
        ("-l notls:127.0.0.1", "-Z"),
        ("-l mtls:127.0.0.1", "ssl_verify_mode"),
    ] {
        let failure = asked(line).unwrap_err();
        assert!(failure.code == USAGE && failure.reason.contains(word), "{line}: {failure:?}");
    }
}

#[test]
fn logins_are_of_the_protocols_asked_for() {
    let logins = |line: &str| {
        let config = plan(line).config;
        (config.sasl, config.protocol, config.auth_file.is_some())
    };
    assert_eq!(logins("-Y users"), (Sasl::Off, Protocol::Auto, true));
    assert_eq!(logins("-S -Y users"), (Sasl::Everywhere, Protocol::Auto, true));
    assert_eq!(logins("-S -B binary -Y users"), (Sasl::Everywhere, Protocol::Binary, true));
    assert_eq!(logins("-v"), (Sasl::Off, Protocol::Auto, false));
}

#[test]
fn unknown_sub_options_warn_and_never_stop_the_start() {
    let plan = plan("-o fancy_new=1,idle_timeout=30,no_maxconns_fast");
    assert!(plan.warnings.iter().any(|warning| warning.contains("fancy_new")));
    assert_eq!(plan.config.idle_timeout, Duration::from_secs(30));
    assert!(!plan.config.connections_fast);
}

#[test]
fn the_http_port_is_a_sub_option() {
    assert_eq!(plan("-o modern").config.http, None);
    let hosts = plan("-o http=localhost:8080,http_host=cache.example").config.http_hosts;
    assert_eq!(hosts, ["localhost", "cache.example"]);
    let http = plan("-o modern,http=127.0.0.1:8080").config.http;
    assert_eq!(http, Some(HttpAddress::Tcp(vec!["127.0.0.1:8080".parse().unwrap()])));
}

#[test]
fn limits_are_memcacheds() {
    assert!(asked("-I 2g").is_err());
    assert!(asked("-I 512").is_err());
    assert!(asked("-m 64 -I 33m").unwrap_err().reason.contains("half"));
    assert!(asked("-c 0").is_err());
    assert!(asked("-t 0").is_err());
}

#[test]
fn version_and_help_are_as_scripts_expect_them() {
    assert!(matches!(asked("-V"), Ok(CommandLine::Print(text)) if text.starts_with("memcached 1.6.")));
    assert!(matches!(asked("-h"), Ok(CommandLine::Print(text)) if text.contains("--memory-limit=")));
}
