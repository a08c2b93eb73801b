//! Changes that are counted for those who keep copies: enemy, a change that a copy outlives. A plain file plays the kernel
//! program's array.
//! Guards: P42

use harness::Scratch;
use keyway_cache::server::KernelDoor;
use keyway_cache::server::ServerCache as _;
use keyway_cache::server::ServerSession as _;
use keyway_cache::server::handout::GRANTED_AND_COUNTS;
use keyway_cache::{Arithmetic, Cache, Delete, Get, Options, Place, Store, StoreMode, WriteError};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;

/// The place of `flush_all`'s word.
const FLUSH: u64 = 4096;

fn options() -> Options {
    Options::new().memory(2 << 20)
}

fn array() -> File {
    let file = File::from(memfd_create(c"stripes", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(9 * 4096).unwrap();
    file
}

fn turned_on(cache: &Cache) -> (KernelDoor, File) {
    let array = array();
    let door = cache.turn_kernel_door_on(array.try_clone().unwrap()).unwrap();
    while !door.is_acknowledged() {
        std::thread::yield_now();
    }
    (door, array)
}

fn word(array: &File, stripe: u64) -> u64 {
    let mut bytes = [0; 8];
    array.read_exact_at(&mut bytes, stripe * 8).unwrap();
    u64::from_le_bytes(bytes)
}

fn set_word(array: &File, stripe: u64, word: u64) {
    array.write_all_at(&word.to_le_bytes(), stripe * 8).unwrap();
}

fn at_rest(word: u64) -> bool {
    word & 0xFFFF_FFFF == word >> 32
}

fn stripe(cache: &Cache, key: &[u8]) -> u64 {
    cache.hash(key) >> 52
}

#[test]
fn every_change_is_counted_and_no_read_is() {
    let cache = Cache::open(&Place::Memfd, &options()).unwrap();
    let mut session = cache.session().unwrap();
    session.set(b"before", b"1", 0).unwrap();
    let (_door, array) = turned_on(&cache);
    let of_key = stripe(&cache, b"key");
    let mut last = 0;
    let mut moved = |what: &str, expected: bool| {
        let now = word(&array, of_key);
        assert!(at_rest(now), "{what}: {now:#x}");
        assert_eq!(now != last, expected, "{what}");
        last = now;
    };
    let mut out = Vec::new();
    session.get_append(b"key", &mut out).unwrap();
    moved("a miss", false);
    session.set(b"key", b"1", 0).unwrap();
    moved("an insert", true);
    session.get_append(b"key", &mut out).unwrap();
    moved("a get", false);
    session.set(b"key", b"2", 0).unwrap();
    moved("a set", true);
    session
        .arithmetic(
            b"key",
            &Arithmetic {
                delta: 1,
                ..Arithmetic::default()
            },
        )
        .unwrap();
    moved("an increment", true);
    let append = Store {
        mode: StoreMode::Append,
        ..Store::default()
    };
    session.store(b"key", b"0", &append).unwrap();
    moved("an append", true);
    session.touch(b"key", 100).unwrap();
    moved("a touch", true);
    let gat = Get {
        exptime: Some(0),
        ..Get::default()
    };
    session.get_with(b"key", &gat, &mut out, |_, _| {}).unwrap();
    moved("a get that touches", true);
    session.note_hit(b"key");
    moved("a hit that is reported", false);
    session
        .delete(
            b"key",
            &Delete {
                invalidate: true,
                ..Delete::default()
            },
        )
        .unwrap();
    moved("a mark as stale", true);
    session.delete(b"key", &Delete::default()).unwrap();
    moved("a delete", true);
    session.delete(b"key", &Delete::default()).unwrap();
    moved("a delete of nothing", false);
    let flushed = word(&array, FLUSH);
    session.flush_all(0).unwrap();
    assert!(word(&array, FLUSH) != flushed && at_rest(word(&array, FLUSH)));
    let flushed = word(&array, FLUSH);
    session.flush_all(1000).unwrap();
    assert!(word(&array, FLUSH) != flushed, "a flush that is to come");
    assert!(cache.flush_at_s().is_some());
}

#[test]
fn evictions_and_purges_for_age_are_counted() {
    // Of what has expired at once, a part is reclaimed before the door is on.
    for (exptime, least) in [(0, 9), (-1, 2)] {
        let cache = Cache::open(&Place::Memfd, &options()).unwrap();
        let mut session = cache.session().unwrap();
        let key = |i: u32| format!("key {i}").into_bytes();
        let copied = 200;
        for i in 0..copied {
            session.set(&key(i), &[b'v'; 1000], exptime).unwrap();
        }
        let (_door, array) = turned_on(&cache);
        // What stays is of stripes in which nothing else is.
        let own: Vec<u64> = (0..copied).map(|i| stripe(&cache, &key(i))).collect();
        let mut others = (copied..).map(key).filter(|key| !own.contains(&stripe(&cache, key)));
        for _ in 0..20_000 {
            session.set(&others.next().unwrap(), &[b'v'; 1000], 0).unwrap();
        }
        let counted = own.iter().filter(|stripe| word(&array, **stripe) != 0).count();
        assert!(
            counted >= own.len() * least / 10,
            "exptime {exptime}: {counted} of {}",
            own.len()
        );
        let mut out = Vec::new();
        for i in 0..copied {
            if word(&array, own[i as usize]) == 0 && exptime == 0 {
                assert!(
                    session.get_append(&key(i), &mut out).unwrap().is_some(),
                    "gone, and not counted"
                );
            }
        }
    }
}

#[test]
fn who_cannot_count_does_not_write_while_the_door_is_on() {
    let folder = Scratch::new();
    let place = Place::Path(folder.join("region"));
    let (server, client) = (
        Cache::open(&place, &options()).unwrap(),
        Cache::open(&place, &options()).unwrap(),
    );
    let mut session = client.session().unwrap();
    session.set(b"key", b"1", 0).unwrap();
    let (door, _array) = turned_on(&server);
    let mut out = Vec::new();
    assert!(
        session.get_append(b"key", &mut out).unwrap().is_some(),
        "reading is as before"
    );
    assert_eq!(session.set(b"key", b"2", 0), Err(WriteError::KernelDoor));
    assert_eq!(session.delete(b"key", &Delete::default()), Err(WriteError::KernelDoor));
    assert_eq!(session.flush_all(0), Err(WriteError::KernelDoor));
    session.upkeep();
    let second = client.turn_kernel_door_on(array());
    assert!(second.is_err(), "one at a time");
    drop(door);
    session.set(b"key", b"3", 0).unwrap();
    server.session().unwrap().set(b"key", b"4", 0).unwrap();
}

#[test]
fn a_client_of_the_regions_socket_counts_in_the_same_words() {
    let folder = Scratch::new();
    let server = Cache::open(&Place::Path(folder.join("region")), &options()).unwrap();
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let hand_out = || {
        let (stream, _) = listener.accept().unwrap();
        let files = server.descriptors().unwrap();
        let mut descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let doorway = server.doorway();
        let line = doorway.as_ref().map_or("keyway-region 1\n".to_owned(), |(word, map)| {
            descriptors.push(map.as_raw_fd());
            format!("{GRANTED_AND_COUNTS}{word}\n")
        });
        let rights = [ControlMessage::ScmRights(&descriptors)];
        sendmsg::<()>(
            stream.as_raw_fd(),
            &[IoSlice::new(line.as_bytes())],
            &rights,
            MsgFlags::empty(),
            None,
        )
        .unwrap();
    };
    let opened = || {
        std::thread::scope(|scope| {
            scope.spawn(hand_out);
            Cache::open(&Place::at(&path), &options()).unwrap()
        })
    };
    let early = opened();
    let mut session = early.session().unwrap();
    session.set(b"key", b"1", 0).unwrap();
    let (_door, array) = turned_on(&server);
    let of_key = stripe(&server, b"key");
    std::thread::scope(|scope| {
        scope.spawn(hand_out);
        session.set(b"key", b"2", 0).unwrap();
    });
    let first = word(&array, of_key);
    assert!(first != 0, "who was there before asks again");
    let late = opened();
    late.session().unwrap().set(b"key", b"3", 0).unwrap();
    assert!(
        word(&array, of_key) != first && at_rest(word(&array, of_key)),
        "who comes later has them"
    );
}

#[test]
fn a_stripe_of_a_dead_process_is_moved_on_and_never_back() {
    let cache = Cache::open(&Place::Memfd, &options()).unwrap();
    let mut session = cache.session().unwrap();
    let (door, array) = turned_on(&cache);
    let of_key = stripe(&cache, b"key");
    session.set(b"key", b"1", 0).unwrap();
    let before = word(&array, of_key);
    // As a thread that died between its two counts has left it.
    set_word(&array, of_key, before + 1);
    session.set(b"key", b"2", 0).unwrap();
    assert!(!at_rest(word(&array, of_key)), "the living do not make up for the dead");
    assert_eq!(door.mend(), 1);
    let after = word(&array, of_key);
    assert!(
        at_rest(after) && after & 0xFFFF_FFFF > (before & 0xFFFF_FFFF) + 1,
        "{before:#x} {after:#x}"
    );
    assert_eq!(door.mend(), 0);
}

/// Another process writes after the death of a server whose lease runs until then.
fn write_after_an_owner_with_this_lease(until_ns: u64) {
    let folder = Scratch::new();
    let place = Place::Path(folder.join("region"));
    let server = Cache::open(&place, &options()).unwrap();
    let client = Cache::open(&place, &options()).unwrap();
    let mut session = client.session().unwrap();
    let (door, _array) = turned_on(&server);
    assert_eq!(session.set(b"key", b"1", 0), Err(WriteError::KernelDoor));
    door.renew(until_ns);
    // The end of a process, as far as the region can tell: its mapping is gone, and nothing is tidied up.
    door.abandon();
    drop(server);
    session.set(b"key", b"2", 0).unwrap();
}

#[test]
fn a_door_whose_owner_died_is_turned_off_when_the_lease_is_over() {
    write_after_an_owner_with_this_lease(1);
}

/// As a stray write leaves it: three hundred years.
#[test]
fn a_lease_that_no_server_can_have_written_holds_writes_up_for_one_lease() {
    write_after_an_owner_with_this_lease(u64::MAX / 2);
}
