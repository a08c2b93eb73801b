//! Where there are no protection keys to be had: enemy, a cache that does not work there, that says nothing of it, or says it each time.
//!
//! All keys of this process are taken first, so that it is so on every machine. One test: it speaks of the whole process.
//! Guards: P32
#![allow(unsafe_code, reason = "a test: a system call")]

use keyway_cache::{Cache, Gate, GateState, Options, Place};
use nix::libc;
use std::sync::Mutex;

static SAID: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        SAID.lock().unwrap().push((record.level(), record.args().to_string()));
    }
    fn flush(&self) {}
}

#[test]
fn without_keys_everything_works_and_it_is_said_once() {
    // SAFETY: pkey_alloc(2) takes two numbers.
    while unsafe { libc::syscall(libc::SYS_pkey_alloc, 0 as libc::c_ulong, 0 as libc::c_ulong) } > 0 {}
    log::set_logger(&Listener).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let options = Options::new().memory(2 << 20);
    for gate in [Gate::WherePossible, Gate::WherePossible, Gate::Off] {
        let cache = Cache::open(&Place::Memfd, &options.clone().gate(gate)).unwrap();
        let state = cache.info().gate;
        match gate {
            Gate::Off => assert_eq!(state, GateState::Off),
            _ => assert!(
                matches!(&state, GateState::Unavailable(why) if why.contains("pkey_alloc")),
                "{state:?}"
            ),
        }
        let mut session = cache.session().unwrap();
        session.set(b"key", b"value", 0).unwrap();
        let mut value = Vec::new();
        assert!(session.get_append(b"key", &mut value).unwrap().is_some());
        assert_eq!(value, b"value");
    }
    let said = SAID.lock().unwrap();
    let of_gate: Vec<_> = said
        .iter()
        .filter(|(_, text)| text.contains("accessible outside calls"))
        .collect();
    assert_eq!(of_gate.len(), 1, "{said:?}");
    assert!(
        of_gate[0].0 == log::Level::Debug && of_gate[0].1.contains("pkey_alloc"),
        "{of_gate:?}"
    );
}
