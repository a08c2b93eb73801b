//! memcached's options as getopt_long(3) splits a command line into them: the table, `-h`, letters and values.
//!
//! Never: knows what an option means to this server.

use std::ffi::OsString;

use crate::exit::Failure;

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Value {
    No,
    Yes,
    /// only attached, as in `--verbose=2`
    Attached,
}

/// Every option: letter, long name, value, help.
pub(super) const OPTIONS: [(char, &str, Value, &str); 37] = [
    ('p', "port", Value::Yes, "TCP port (default 11211; 0: off; -1: any free one)"),
    (
        'U',
        "udp-port",
        Value::Yes,
        "UDP port (default 0: off; -1: any free one); answers this machine only, unless -o udp_allow names other networks",
    ),
    (
        's',
        "unix-socket",
        Value::Yes,
        "Unix socket; turns TCP off unless -p or -l is also given",
    ),
    ('a', "unix-mask", Value::Yes, "mode of the Unix socket, octal (default 700)"),
    ('A', "enable-shutdown", Value::No, "allow the command \"shutdown\""),
    (
        'l',
        "listen",
        Value::Yes,
        "addresses to listen on, separated by commas, each with an optional port (default: all)",
    ),
    (
        'd',
        "daemon",
        Value::No,
        "run in the background; returns when the server is ready",
    ),
    ('r', "enable-coredumps", Value::No, "allow core files"),
    ('u', "user", Value::Yes, "become this user (only as root)"),
    (
        'm',
        "memory-limit",
        Value::Yes,
        "size of the region, MiB, or with unit: 512k, 64m, 1g; includes everything (default 64)",
    ),
    (
        'M',
        "disable-evictions",
        Value::No,
        "fail stores when memory is full, instead of evicting: a rule of the region, until a server of it has -o evict",
    ),
    ('c', "conn-limit", Value::Yes, "most connections at a time (default 1024)"),
    ('k', "lock-memory", Value::No, "lock all memory"),
    (
        'v',
        "verbose",
        Value::Attached,
        "log more: -v events of the server, -vv connections, -vvv requests",
    ),
    ('h', "help", Value::No, "this help"),
    ('i', "license", Value::No, "the licence"),
    ('V', "version", Value::No, "the version"),
    ('P', "pidfile", Value::Yes, "write the process id to this file"),
    ('f', "slab-growth-factor", Value::Yes, "ignored: there are no slabs"),
    ('n', "slab-min-size", Value::Yes, "ignored: there are no slabs"),
    ('L', "enable-largepages", Value::No, "huge pages"),
    (
        'D',
        "prefix-delimiter",
        Value::Yes,
        "count by key prefix up to this character (\"stats detail\")",
    ),
    ('t', "threads", Value::Yes, "worker threads (default 4)"),
    (
        'R',
        "max-reqs-per-event",
        Value::Yes,
        "most requests of a connection in one turn (default 20)",
    ),
    ('C', "disable-cas", Value::No, "show no CAS uniques"),
    (
        'b',
        "listen-backlog",
        Value::Yes,
        "connections that the kernel queues (default 1024)",
    ),
    ('B', "protocol", Value::Yes, "ascii, binary or auto"),
    (
        'I',
        "max-item-size",
        Value::Yes,
        "largest item, bytes, or with unit (default 1m; 1k to 1g)",
    ),
    (
        'S',
        "enable-sasl",
        Value::No,
        "log in by SASL, in the binary protocol; the users are those of -Y, or of the file in MEMCACHED_SASL_PWDB, which has user@HOST:password or user:password; the file needs mode 600 or 640",
    ),
    ('F', "disable-flush-all", Value::No, "forbid flush_all"),
    ('X', "disable-dumping", Value::No, "forbid dumps and \"stats detail\""),
    ('W', "disable-watch", Value::No, "forbid \"watch\""),
    (
        'Y',
        "auth-file",
        Value::Yes,
        "log in, in the text protocol; a file of user:password lines (keyway serve --help has more), which only its owner may change and only owner and group may read (chmod 600 or 640)",
    ),
    (
        'e',
        "memory-file",
        Value::Yes,
        "the region's file, or memfd (default /dev/shm/keyway-UID-PORT)",
    ),
    (
        'Z',
        "enable-ssl",
        Value::No,
        "TLS on all TCP addresses but those with notls: before them; needs -o ssl_chain_cert and -o ssl_key",
    ),
    (
        'o',
        "extended",
        Value::Yes,
        "idle_timeout=<s>, maxconns_fast, no_maxconns_fast, modern, no_modern, udp_allow=<network>, udp_answer_max=<size>, connection_memory=<size>, max_request_rate=<n>[:<burst>], hold_misses=<ms>[:<prefix>], log_format=<text or json>, http=<address[:port] or path>, http_host=<name>, http_keys, event_loop=<auto, epoll or io_uring>, busy_poll=<microseconds>, evict and flush (take -M and -F back from a region), track_sizes, drop_privileges, ssl_chain_cert=<file>, ssl_key=<file>, ssl_ca_cert=<file>, ssl_verify_mode=<0 none, 1 optional, 2 required>, ssl_min_version=<2 TLS 1.2, 3 TLS 1.3>; ext_* and proxy_* are refused, others are ignored",
    ),
    ('N', "napi-ids", Value::Yes, "ignored"),
];

/// `-o` names without a meaning in a store that has no slabs, LRU lists, crawlers or resizable hash table.
pub(super) const WITHOUT_MEANING: [&str; 33] = [
    "hashpower",
    "no_hashexpand",
    "slab_reassign",
    "no_slab_reassign",
    "slab_automove",
    "no_slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_sizes",
    "slab_chunk_max",
    "no_chunked_items",
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "no_lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "no_lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "inline_ascii_resp",
    "no_inline_ascii_resp",
    "resp_obj_mem_limit",
    "read_buf_mem_limit",
    "no_drop_privileges",
    "modern",
];

/// Splits arguments into letters and values, as getopt_long does.
pub(super) fn options(
    arguments: impl IntoIterator<Item = OsString>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(char, String)>, Failure> {
    let mut found = Vec::new();
    let mut arguments = arguments.into_iter().map(|argument| {
        argument
            .into_string()
            .map_err(|raw| Failure::usage(format_args!("{} is not valid UTF-8", raw.display())))
    });
    let mut only_operands = false;
    while let Some(argument) = arguments.next().transpose()? {
        let mut next_value = |option: &str| {
            arguments
                .next()
                .transpose()?
                .ok_or_else(|| Failure::usage(format_args!("{option} needs a value after it")))
        };
        if only_operands || !argument.starts_with('-') || argument == "-" {
            warnings.push(format!(
                "\"{argument}\" is ignored: memcached's command line has options only"
            ));
        } else if argument == "--" {
            only_operands = true;
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, attached) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let (letter, takes) = long_option(name)?;
            let value = match (takes, attached) {
                (Value::No, Some(_)) => return Err(Failure::usage(format_args!("--{name} takes no value"))),
                (Value::Yes, None) => next_value(&format!("--{name}"))?,
                (_, attached) => attached.unwrap_or_default(),
            };
            found.push((letter, value));
        } else {
            let mut letters = argument[1..].chars();
            while let Some(letter) = letters.next() {
                let takes = short_option(letter)?;
                let mut value = String::new();
                if takes == Value::Yes {
                    value = letters.as_str().to_owned();
                    letters = "".chars();
                    if value.is_empty() {
                        value = next_value(&format!("-{letter}"))?;
                    }
                }
                found.push((letter, value));
            }
        }
    }
    Ok(found)
}

fn short_option(letter: char) -> Result<Value, Failure> {
    let found = OPTIONS.iter().find(|option| option.0 == letter);
    found
        .map(|option| option.2)
        .ok_or_else(|| Failure::usage(format_args!("-{letter} is no option of memcached; -h lists them")))
}

fn long_option(name: &str) -> Result<(char, Value), Failure> {
    let candidates: Vec<_> = OPTIONS.iter().filter(|option| option.1.starts_with(name)).collect();
    match (candidates.iter().find(|option| option.1 == name), &candidates[..]) {
        (Some(option), _) | (None, [option]) => Ok((option.0, option.2)),
        (None, []) => Err(Failure::usage(format_args!(
            "--{name} is no option of memcached; -h lists them"
        ))),
        (None, [..]) => Err(Failure::usage(format_args!(
            "--{name} may be several options; write it in full"
        ))),
    }
}
