//! Every verb raises its own counters and no others, by each way that it may take: at once, behind a gate, and by all rules (in a region
//! with checksums).
//! Guards: P44

use keyway_cache::{Arithmetic, Cache, Delete, Gate, Get, Options, Place, Session, Store};

/// A call of a verb.
type Call<'a> = &'a dyn Fn(&mut Session);

/// What a call raises, as `name+by`, or `name-by` where it lowers.
fn raised(cache: &Cache, session: &mut Session, call: Call<'_>) -> String {
    let before = cache.counters();
    call(session);
    let after = cache.counters();
    let changed = after.named().zip(before.named()).filter_map(|((name, after), (_, before))| {
        let by = after.wrapping_sub(before).cast_signed();
        // How many bytes an item takes is not asked here; the other two are sums of others.
        (by != 0 && !["bytes", "cmd_get", "cmd_touch"].contains(&name)).then(|| format!("{name}{by:+}"))
    });
    changed.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_verb_raises_its_own_counters() {
    let plain = || Options::new().memory(8 << 20).gate(Gate::Off);
    let regions = [
        ("plain", plain()),
        ("behind a gate", plain().gate(Gate::Rehearsed)),
        ("with checksums", plain().checksums(true)),
    ];
    let (delete, uncounted) = (
        Delete::default(),
        Delete {
            uncounted: true,
            ..Delete::default()
        },
    );
    let unless_changed = Store {
        compare_cas: Some(1),
        ..Store::default()
    };
    let calls: [(&str, Call<'_>); 20] = [
        ("curr_items+1 cmd_set+1 total_items+1", &|s| {
            _ = s.set(b"key", b"1", 0).unwrap()
        }),
        ("cmd_set+1 total_items+1", &|s| _ = s.set(b"key", b"2", 0).unwrap()),
        ("get_hits+1", &|s| _ = s.get(b"key").unwrap()),
        ("get_misses+1", &|s| _ = s.get(b"none").unwrap()),
        ("get_hits+1", &|s| {
            _ = s.get_with(b"key", &Get::default(), &mut Vec::new(), |_, _| {}).unwrap();
        }),
        ("incr_hits+1", &|s| _ = s.incr(b"key", 1).unwrap()),
        ("decr_hits+1", &|s| _ = s.decr(b"key", 1).unwrap()),
        ("incr_misses+1", &|s| _ = s.incr(b"none", 1).unwrap()),
        ("decr_misses+1", &|s| _ = s.decr(b"none", 1).unwrap()),
        ("incr_hits+1", &|s| _ = s.arithmetic(b"key", &Arithmetic::default()).unwrap()),
        ("cmd_set+1 cas_badval+1", &|s| {
            _ = s.store(b"key", b"3", &unless_changed).unwrap()
        }),
        ("cmd_set+1 cas_misses+1", &|s| {
            _ = s.store(b"none", b"3", &unless_changed).unwrap()
        }),
        ("touch_hits+1", &|s| _ = s.touch(b"key", 60).unwrap()),
        ("touch_misses+1", &|s| _ = s.touch(b"none", 60).unwrap()),
        ("curr_items-1 delete_hits+1", &|s| _ = s.delete(b"key", &delete).unwrap()),
        ("delete_misses+1", &|s| _ = s.delete(b"key", &delete).unwrap()),
        ("", &|s| _ = s.delete(b"key", &uncounted).unwrap()),
        ("curr_items+1 cmd_set+1 total_items+1", &|s| {
            _ = s.set(b"key", b"1", 0).unwrap()
        }),
        ("curr_items-1", &|s| _ = s.delete(b"key", &uncounted).unwrap()),
        ("cmd_flush+1", &|s| s.flush_all(0).unwrap()),
    ];
    for (what, options) in regions {
        let cache = Cache::open(&Place::Memfd, &options).unwrap();
        let session = &mut cache.session().unwrap();
        for (at, (expected, call)) in calls.iter().enumerate() {
            assert_eq!(raised(&cache, session, *call), *expected, "{what}, call {at}");
        }
    }
}
