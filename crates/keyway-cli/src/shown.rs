//! How the command line is shown: the groups of `keyway serve --help`, what its short form leaves out, what shells complete, and what stands
//! in the configuration file for an option without a default.
//!
//! Never: knows what an option means.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use keyway_bench::workloads;
use keyway_server::WatchAsked;

/// Options of `keyway serve` by what they are about. Those that are in none come first.
const GROUPS: &[(&str, &[&str])] = &[
    (
        "Sockets",
        &["listen", "socket", "socket_mode", "udp", "udp_allow", "udp_answer_max"],
    ),
    ("HTTP port", &["http", "http_keys"]),
    (
        "Region",
        &[
            "region",
            "any_owner",
            "memory",
            "max_item",
            "no_evict",
            "evict",
            "sessions",
            "checksums",
            "durable",
            "huge_pages",
            "prefault",
            "max_gap",
            "gap",
            "region_socket",
            "region_writers",
            "region_readers",
        ],
    ),
    (
        "Threads and connections",
        &[
            "threads",
            "cpus",
            "busy_poll",
            "event_loop",
            "connections",
            "connection_memory",
            "max_request_rate",
            "hold_misses",
            "idle_timeout",
        ],
    ),
    (
        "Logins and TLS",
        &[
            "auth_file",
            "auth_without_tls",
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "tls_client_optional",
            "tls_min_version",
        ],
    ),
    (
        "Kernel",
        &["kernel", "kernel_pinned", "kernel_tcp", "kernel_memory", "kernel_rate"],
    ),
    ("What clients may do", &["no_flush", "flush", "allow_shutdown", "track_sizes"]),
];

/// Options of `keyway serve` that its short help has, too.
const COMMON: &[&str] = &[
    "config",
    "check",
    "listen",
    "socket",
    "udp",
    "http",
    "region",
    "memory",
    "max_item",
    "threads",
    "connections",
    "auth_file",
    "tls_cert",
    "tls_key",
    "take_over",
    "verbose",
];

const SERVE: &str = "\
Examples:
  keyway serve
      on 127.0.0.1:11211, with 64 MiB in /dev/shm/keyway-UID-11211
  keyway serve --memory 4g --listen 10.0.0.5 --http 127.0.0.1
      for other machines, with numbers at http://127.0.0.1:11212
  keyway serve --listen tls://10.0.0.5 --tls-cert s.pem --tls-key s.key \\
    --auth-file /etc/keyway/users
      with TLS and logins
  keyway serve --config /etc/keyway/keyway.toml --check
      only tell whether a configuration is right
  keyway serve --memory 8g --take-over
      replace the running server by this one; no client notices";
const SERVE_SHORT: &str = "`keyway serve --help` has all options, and examples.";

/// The command line in groups.
pub(crate) fn grouped(all: Command) -> Command {
    all.mut_subcommand("serve", |serve| {
        serve.after_help(SERVE_SHORT).after_long_help(SERVE).mut_args(|option| {
            let is_common = COMMON.contains(&option.get_id().as_str());
            match group_of(&option) {
                Some(heading) => option.help_heading(heading).hide_short_help(!is_common),
                None => option.hide_short_help(!is_common),
            }
        })
    })
}

fn group_of(option: &Arg) -> Option<&'static str> {
    let id = option.get_id().as_str();
    GROUPS.iter().find(|(_, ids)| ids.contains(&id)).map(|(heading, _)| *heading)
}

/// The command line for shells' completion: words where an option takes one of a few, files where it takes a file, and nothing
/// elsewhere.
pub(crate) fn completed(all: Command) -> Command {
    let names: Vec<String> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let all = all.mut_args(completed_argument);
    names.into_iter().fold(all, |all, name| all.mut_subcommand(name, completed))
}

fn completed_argument(argument: Arg) -> Arg {
    if !argument.get_action().takes_values() || !argument.get_possible_values().is_empty() {
        return argument;
    }
    let name = match argument.get_value_names() {
        Some([name, ..]) => name.to_string(),
        _ => argument.get_id().as_str().to_uppercase(),
    };
    let words = words_of(argument.get_id().as_str(), &name);
    if !words.is_empty() {
        return argument.value_parser(PossibleValuesParser::new(words));
    }
    match takes_a_file(&name) {
        true => argument,
        false => argument.value_hint(ValueHint::Other),
    }
}

/// The words that an argument can be: those of its value's name, such as `text|json`, or what a part of the program lists.
fn words_of(id: &str, name: &str) -> Vec<String> {
    let known = |what: &[u8]| {
        let unknown = WatchAsked::parse(what).err();
        unknown.map_or_else(Vec::new, |unknown| unknown.known.into_iter().map(str::to_owned).collect())
    };
    let listed = match id {
        "door" => known(b"door=?"),
        "command" => known(b"command=?"),
        "events" => known(b"?"),
        "workload" => workloads::all().into_iter().map(|workload| workload.name).collect(),
        _ => Vec::new(),
    };
    let is_word = |word: &str| {
        word.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.'))
    };
    match name.contains('|') && name.split('|').all(is_word) {
        true => name.split('|').map(str::to_owned).collect(),
        false => listed,
    }
}

fn takes_a_file(name: &str) -> bool {
    let parts = ["PATH", "FILE", "FOLDER", "PLACE", "PROGRAM", "DIR"];
    parts.iter().any(|part| name.contains(part)) || matches!(name, "FROM" | "TO")
}

/// What the configuration file has for an option without a default.
pub(crate) fn example(id: &str) -> Option<&'static str> {
    Some(match id {
        "listen" => "127.0.0.1:11211",
        "socket" => "/run/keyway/socket",
        "region_socket" => "/run/keyway/region-socket",
        "region_writers" => "www-data",
        "region_readers" => ":adm",
        "udp" => "127.0.0.1:11211",
        "udp_allow" => "10.0.0.0/8",
        "http" => "127.0.0.1:11212",
        "kernel" => "lo",
        "kernel_pinned" => "/sys/fs/bpf/keyway",
        "kernel_rate" => "1000:100",
        "http_host" => "cache.example.org",
        "region" => "/dev/shm/keyway",
        "memory" => "64m",
        "max_item" => "1m",
        "cpus" => "0",
        "connection_memory" => "256m",
        "max_request_rate" => "100000:1000",
        "hold_misses" => "500:user:",
        "sessions" => "128",
        "max_gap" => "3600",
        "auth_file" => "/etc/keyway/users",
        "tls_cert" => "/etc/keyway/server.pem",
        "tls_key" => "/etc/keyway/server.key",
        "tls_client_ca" => "/etc/keyway/clients.pem",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn each_name_in_a_list_is_an_option_of_serve() {
        let all = crate::Cli::command();
        let serve = all.find_subcommand("serve").unwrap();
        let has = |id: &str| serve.get_arguments().any(|option| option.get_id() == id);
        for id in GROUPS.iter().flat_map(|(_, ids)| ids.iter()).chain(COMMON) {
            assert!(
                has(id) || (cfg!(not(feature = "kernel")) && id.starts_with("kernel")),
                "{id} is no option of `keyway serve`"
            );
        }
    }

    #[test]
    fn the_short_help_is_shorter_and_the_long_one_has_examples() {
        let mut all = grouped(crate::Cli::command());
        let serve = all.find_subcommand_mut("serve").unwrap();
        let (short, long) = (serve.render_help().to_string(), serve.render_long_help().to_string());
        assert!(short.lines().count() * 2 < long.lines().count(), "{short}");
        assert!(
            long.contains("Examples:") && long.contains("Logins and TLS:") && !short.contains("--busy-poll"),
            "{long}"
        );
        assert!(
            short.contains("--memory") && short.contains("--help` has all options"),
            "{short}"
        );
    }

    #[test]
    fn words_files_and_nothing_are_told_apart() {
        assert_eq!(words_of("gap", "serve|stale|flush"), ["serve", "stale", "flush"]);
        assert_eq!(words_of("region", "PATH|memfd"), [""; 0]);
        assert!(words_of("door", "NAMES").contains(&"drop_in".to_owned()));
        assert!(words_of("events", "EVENTS").contains(&"evictions".to_owned()));
        assert!(takes_a_file("PATH|memfd") && !takes_a_file("ADDR[:PORT]") && !takes_a_file("KEY"));
    }
}
