//! The ABI: enemy, a structure that has another size or a field elsewhere than libmemcached's headers say, a function that is missing,
//! a name under which no program finds the library.
//! Guards: P31

#[path = "../../src/types.rs"]
#[allow(dead_code, missing_docs, non_camel_case_types, reason = "the library's own declarations")]
mod types;

use crate::common;
use common::{Dropin, HERE};
use harness::{program_on_path, run_to_end, skip};
use std::collections::BTreeSet;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use types::*;

/// `structure.field` of the headers, and our offset.
macro_rules! ours {
    ($($of:ident { $($theirs:literal $field:ident,)* })*) => {
        vec![$((stringify!($of).to_owned(), size_of::<$of>()), $((format!("{}.{}", stringify!($of), $theirs), offset_of!($of, $field)),)*)*]
    };
}

fn declared() -> Vec<(String, usize)> {
    ours! {
        memcached_st {
            "distribution" distribution, "hashkit" hashkit, "server_info" server_version, "number_of_hosts" number_of_hosts,
            "servers" servers, "last_disconnected_server" last_disconnected_server, "snd_timeout" snd_timeout, "rcv_timeout" rcv_timeout,
            "server_failure_limit" server_failure_limit, "server_timeout_limit" server_timeout_limit,
            "io_msg_watermark" io_msg_watermark, "io_bytes_watermark" io_bytes_watermark, "io_key_prefetch" io_key_prefetch,
            "tcp_keepidle" tcp_keepidle, "poll_timeout" poll_timeout, "connect_timeout" connect_timeout, "retry_timeout" retry_timeout,
            "dead_timeout" dead_timeout, "send_size" send_size, "recv_size" recv_size, "user_data" user_data, "query_id" query_id,
            "number_of_replicas" number_of_replicas, "result" result, "ketama" ketama, "virtual_bucket" virtual_bucket,
            "allocators" allocators, "on_clone" on_clone, "on_cleanup" on_cleanup, "get_key_failure" get_key_failure,
            "delete_trigger" delete_trigger, "callbacks" callbacks, "sasl" sasl_callbacks, "error_messages" error_messages,
            "_namespace" namespace, "configure" configure, "options" options,
        }
        memcached_result_st {
            "item_flags" item_flags, "item_expiration" item_expiration, "key_length" key_length, "item_cas" item_cas, "root" root,
            "value" value, "numeric_value" numeric_value, "count" count, "item_key" item_key, "options" options,
        }
        memcached_stat_st {
            "connection_structures" connection_structures, "curr_connections" curr_connections, "curr_items" curr_items, "pid" pid,
            "pointer_size" pointer_size, "rusage_system_microseconds" rusage_system_microseconds,
            "rusage_system_seconds" rusage_system_seconds, "rusage_user_microseconds" rusage_user_microseconds,
            "rusage_user_seconds" rusage_user_seconds, "threads" threads, "time" time, "total_connections" total_connections,
            "total_items" total_items, "uptime" uptime, "bytes" bytes, "bytes_read" bytes_read, "bytes_written" bytes_written,
            "cmd_get" cmd_get, "cmd_set" cmd_set, "evictions" evictions, "get_hits" get_hits, "get_misses" get_misses,
            "limit_maxbytes" limit_maxbytes, "version" version, "__future" future, "root" root,
        }
        memcached_server_st {
            "options" options, "number_of_hosts" number_of_hosts, "cursor_active" cursor_active, "port" port,
            "io_bytes_sent" io_bytes_sent, "request_id" request_id, "server_failure_counter" server_failure_counter,
            "server_timeout_counter" server_timeout_counter, "weight" weight, "version" version, "state" state,
            "io_wait_count" io_wait_count, "major_version" major_version, "micro_version" micro_version, "minor_version" minor_version,
            "type" kind, "next_retry" next_retry, "root" root, "limit_maxbytes" limit_maxbytes, "error_messages" error_messages,
            "hostname" hostname,
        }
        memcached_string_st { "end" end, "string" string, "current_size" current_size, "root" root, "options" options, }
        memcached_analysis_st {
            "root" root, "average_item_size" average_item_size, "longest_uptime" longest_uptime, "least_free_server" least_free_server,
            "most_consumed_server" most_consumed_server, "oldest_server" oldest_server, "pool_hit_ratio" pool_hit_ratio,
            "most_used_bytes" most_used_bytes, "least_remaining_bytes" least_remaining_bytes,
        }
        memcached_callback_st { "callback" callback, "context" context, "number_of_callback" number_of_callback, }
        hashkit_st { "base_hash" base_hash, "distribution_hash" distribution_hash, "flags" flags, "options" options, "_key" key, }
    }
}

#[test]
fn structures_are_as_large_and_have_their_fields_where_the_headers_say() {
    let (Some(gcc), true) = (
        program_on_path("gcc"),
        Path::new("/usr/include/libmemcached/memcached.h").exists(),
    ) else {
        return skip("the ABI", "gcc or libmemcached-dev is not installed");
    };
    let dropin = Dropin::new();
    let mut source = String::from("#include <stddef.h>\n#include <libmemcached/memcached.h>\n");
    for (name, number) in declared() {
        let what = match name.split_once('.') {
            Some((of, field)) => format!("offsetof(struct {of}, {field})"),
            None => format!("sizeof(struct {name})"),
        };
        source += &format!("_Static_assert({what} == {number}, \"{name}: ours {number}\");\n");
    }
    // Bits of the flags, and the codes, behaviours and sizes that are numbers here.
    source += r#"
_Static_assert(offsetof(struct memcached_st, configure.version) == 672 && MEMCACHED_MAX_KEY == 251 && MEMCACHED_NI_MAXHOST == 1025, "number");
_Static_assert(MEMCACHED_MAX_NAMESPACE == 128 && MEMCACHED_VERSION_STRING_LENGTH == 24 && MEMCACHED_DEFAULT_PORT == 11211, "number");
_Static_assert(MEMCACHED_MAXIMUM_RETURN == 49 && MEMCACHED_BEHAVIOR_MAX == 38 && MEMCACHED_HASH_MAX == 12 && MEMCACHED_CALLBACK_MAX == 9, "number");
_Static_assert(MEMCACHED_DISTRIBUTION_VIRTUAL_BUCKET == 6 && MEMCACHED_CONNECTION_UNIX_SOCKET == 2, "number");
int main(void) { return 0; }
"#;
    let compiles = |source: &str| {
        let file = dropin.scratch.join("abi.c");
        std::fs::write(&file, source).expect("a source file");
        run_to_end(Command::new(&gcc).arg("-fsyntax-only").arg(&file), harness::DEADLINE)
    };
    let (status, output) = compiles(&source);
    assert!(status.success(), "{output}");
    // A structure that is one byte larger must be seen.
    let (status, _) = compiles(&source.replacen("== 696", "== 697", 1));
    assert!(!status.success(), "a wrong size goes unnoticed");
}

#[test]
fn the_bits_of_the_flags_are_where_the_headers_have_them() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("the flags", "flags.c") else {
        return;
    };
    common::printed(&mut Command::new(&program));
    for library in [common::Library::Preloaded, common::Library::Replaced] {
        common::printed(dropin.give(&mut Command::new(&program), library));
    }
}

#[test]
fn every_function_is_exported_and_nothing_else() {
    let Some(nm) = program_on_path("nm") else {
        return skip("the exported functions", "nm is not installed");
    };
    let dropin = Dropin::new();
    let exported = |file: &Path| -> BTreeSet<String> {
        let output = common::printed(Command::new(&nm).args(["-D", "--defined-only"]).arg(file));
        let functions = output.lines().filter_map(|line| line.split_once(" T "));
        functions.map(|(_, name)| name.to_owned()).collect()
    };
    let listed = |name: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(format!("{HERE}/tests/scripts/{name}")).expect("a list");
        text.lines().map(str::to_owned).collect()
    };
    let mut expected = listed("exports.txt");
    assert_eq!(expected.len(), 138);
    expected.insert("keyway_libmemcached".to_owned());
    assert_eq!(exported(&dropin.file()), expected);
    let util = dropin.scratch.join("libmemcachedutil.so.2");
    assert_eq!(exported(&util), listed("exports-util.txt"));
    // Debian's own, where it is installed, has the same.
    for (name, list) in [
        ("libmemcached.so.11", "exports.txt"),
        ("libmemcachedutil.so.2", "exports-util.txt"),
    ] {
        let debian = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
        if debian.exists() {
            assert_eq!(exported(&debian), listed(list), "{name}");
        }
    }
}

#[test]
fn the_libraries_have_the_names_that_programs_are_linked_to() {
    let Some(readelf) = program_on_path("readelf") else {
        return skip("the libraries' names", "readelf is not installed");
    };
    let dropin = Dropin::new();
    for (name, needs) in [
        ("libmemcached.so.11", "libhashkit.so.2"),
        ("libmemcached.so.11", "libsasl2.so.2"),
        ("libmemcachedutil.so.2", "libmemcached.so.11"),
    ] {
        let told = common::printed(Command::new(&readelf).arg("-d").arg(dropin.scratch.join(name)));
        assert!(told.contains(&format!("soname: [{name}]")), "{told}");
        assert!(told.contains(&format!("Shared library: [{needs}]")), "{told}");
        assert!(told.contains("NODELETE"), "{told}");
    }
}

/// Libraries that a file names as needed.
fn needed(file: &Path) -> BTreeSet<String> {
    let told = common::printed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(file));
    let names = told.lines().filter(|line| line.contains("(NEEDED)"));
    names
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned()))
        .collect()
}

/// Names of a file's symbols, as nm(1) lists them; without versions.
fn symbols(file: &Path, which: &str) -> BTreeSet<String> {
    let told = common::printed(Command::new("nm").args(["-D", "-P", which]).arg(file));
    let names = told.lines().filter_map(|line| line.split([' ', '@']).next());
    names.map(str::to_owned).collect()
}

/// What a program reaches by a library: its own libraries, and theirs, by name.
fn reached(first: &Path) -> BTreeSet<String> {
    let (mut reached, mut to_do) = (BTreeSet::new(), vec![first.to_owned()]);
    while let Some(file) = to_do.pop() {
        for name in needed(&file) {
            if reached.insert(name.clone()) {
                to_do.push(Path::new("/lib/x86_64-linux-gnu").join(name));
            }
        }
    }
    reached
}

#[test]
fn what_debians_programs_have_by_libmemcached_they_have_by_the_drop_in() {
    let test = "the symbols of Debian's programs";
    let debian = Path::new("/usr/lib/x86_64-linux-gnu/libmemcached.so.11");
    if program_on_path("nm").is_none() || program_on_path("readelf").is_none() || !debian.exists() {
        return skip(test, "binutils or Debian's libmemcached is not installed");
    }
    let (_, listed) = run_to_end(
        Command::new("apt-cache").args(["rdepends", "libmemcached11"]),
        harness::DEADLINE,
    );
    let packages: BTreeSet<&str> = listed.lines().filter_map(|line| line.strip_prefix("  ")).collect();
    let packages: Vec<&str> = packages.into_iter().collect();
    let place = std::env::current_exe().expect("the running test has a path");
    let unpacked = match clients::prepare::debian(place.ancestors().nth(3).expect("a target directory"), &packages) {
        Ok(unpacked) if !packages.is_empty() => unpacked,
        Ok(_) => return skip(test, "apt-cache knows no package that depends on libmemcached11"),
        Err(why) => return skip(test, &why),
    };
    let dropin = Dropin::new();
    let ours = reached(&dropin.file());
    let own = symbols(&dropin.file(), "--defined-only");
    let theirs: Vec<(String, BTreeSet<String>)> = reached(debian)
        .into_iter()
        .map(|name| {
            (
                name.clone(),
                symbols(&Path::new("/lib/x86_64-linux-gnu").join(name), "--defined-only"),
            )
        })
        .chain([("libmemcached.so.11".to_owned(), symbols(debian, "--defined-only"))])
        .collect();
    let (mut programs, mut only_by_it, mut missing) = (0, BTreeSet::new(), BTreeSet::new());
    for package in &packages {
        let find = common::printed(Command::new("find").arg(unpacked.join(package)).args(["-type", "f"]));
        for file in find.lines().map(Path::new) {
            let is_program = std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
            let needs = if is_program { needed(file) } else { BTreeSet::new() };
            if !needs.contains("libmemcached.so.11") {
                continue;
            }
            programs += 1;
            for symbol in symbols(file, "--undefined-only") {
                let mut at = theirs
                    .iter()
                    .filter(|(_, symbols)| symbols.contains(&symbol))
                    .map(|(name, _)| name)
                    .peekable();
                if at.peek().is_none() || at.clone().any(|name| needs.contains(name) && name != "libmemcached.so.11") {
                    continue;
                }
                if !own.contains(&symbol) && !at.any(|name| ours.contains(name)) {
                    missing.insert(format!("{}: {symbol}", file.display()));
                } else if !own.contains(&symbol) {
                    only_by_it.insert(symbol);
                }
            }
        }
    }
    assert!(programs >= 15, "{programs} programs and libraries are linked to libmemcached");
    assert!(
        only_by_it.contains("sasl_done"),
        "pylibmc has it by libmemcached: {only_by_it:?}"
    );
    assert_eq!(missing, BTreeSet::new());
}
