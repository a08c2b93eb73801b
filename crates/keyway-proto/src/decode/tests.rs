//! Tests of the decoder: a table of lines with their results, and that the result does not depend on how the bytes are split.
//!
//! The errors in the table are those of memcached 1.6.45, observed on the wire; where 1.6.18 has another text, `docs/protocol.md`
//! says so.

#![allow(clippy::indexing_slicing, clippy::panic, reason = "a test may fail by panicking")]

use super::*;
use crate::request::*;
use crate::token::tokens;

/// What the decoder makes of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// `Debug` of the request, which shows every field
    Request(String),
    /// the key to forget
    TooLarge(Option<Vec<u8>>),
    Refused(&'static str),
    Closed,
}

fn limits() -> Limits {
    Limits {
        item_size_max: 1024,
        ..Limits::default()
    }
}

/// Decodes `stream` in pieces that end at `cuts`, and checks that the decoder makes progress and that its `need` is right.
fn events(stream: &[u8], cuts: impl IntoIterator<Item = usize>) -> Vec<Event> {
    let mut decoder = Decoder::new(limits());
    let (mut events, mut start, mut need) = (Vec::new(), 0, 0);
    for end in cuts.into_iter().chain([stream.len()]) {
        loop {
            let input = &stream[start..end];
            let consumed = match decoder.decode(input) {
                Decoded::Incomplete { need: more } => {
                    assert!(more > input.len());
                    need = start + more;
                    break;
                }
                Decoded::Request { consumed, request } => {
                    events.push(Event::Request(format!("{request:?}")));
                    consumed
                }
                Decoded::TooLarge { consumed, forget } => {
                    events.push(Event::TooLarge(forget.map(|key| key.stored().to_vec())));
                    consumed
                }
                Decoded::Refused { consumed, reply, close } => {
                    if close {
                        events.push(Event::Closed);
                        return events;
                    }
                    // Without a reply, bytes are only dropped; how many at a time does not matter.
                    if !reply.is_empty() {
                        events.push(Event::Refused(std::str::from_utf8(reply).unwrap_or_default()));
                    }
                    consumed
                }
            };
            assert!(end >= need, "answered before the bytes that it said it needs");
            assert!(consumed > 0 && consumed <= input.len());
            start += consumed;
        }
    }
    events
}

fn request(request: Request<'_>) -> Vec<Event> {
    vec![Event::Request(format!("{request:?}"))]
}

fn refused(reply: &'static str) -> Vec<Event> {
    vec![Event::Refused(reply)]
}

fn error(reply: &'static str) -> Vec<Event> {
    refused(match reply {
        "format" => "CLIENT_ERROR bad command line format\r\n",
        "exptime" => "CLIENT_ERROR invalid exptime argument\r\n",
        "delta" => "CLIENT_ERROR invalid numeric delta argument\r\n",
        "chunk" => "CLIENT_ERROR bad data chunk\r\n",
        "large" => "SERVER_ERROR object too large for cache\r\n",
        "token" => "CLIENT_ERROR bad token in command line format\r\n",
        "invalid" => "CLIENT_ERROR invalid flag\r\n",
        "duplicate" => "CLIENT_ERROR duplicate flag\r\n",
        "either" => "CLIENT_ERROR invalid or duplicate flag\r\n",
        "many" => "CLIENT_ERROR options flags are too long\r\n",
        "opaque" => "CLIENT_ERROR opaque token too long\r\n",
        "key" => "CLIENT_ERROR error decoding key\r\n",
        "command" => "ERROR\r\n",
        other => panic!("no such error in the table: {other}"),
    })
}

fn too_large() -> Vec<Event> {
    [vec![Event::TooLarge(None)], error("large")].concat()
}

fn forgotten(key: &[u8]) -> Vec<Event> {
    vec![
        Event::TooLarge(Some(key.to_vec())),
        Event::Refused("SERVER_ERROR object too large for cache\r\n"),
    ]
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Store<'a> {
    Store {
        verb: StoreVerb::Set,
        key,
        flags: 0,
        exptime: 0,
        cas: 0,
        noreply: false,
        value,
    }
}

fn mg<'a>(key: &'a [u8], flags: &'a [u8]) -> MetaGet<'a> {
    MetaGet {
        key: MetaKey::new(key, None),
        flags: Flags(tokens(flags)),
        value: false,
        quiet: false,
        no_bump: false,
        unless_cas: None,
        new_cas: None,
        vivify: None,
        recache_s: None,
        exptime: None,
    }
}

fn ms<'a>(key: &'a [u8], flags: &'a [u8], value: &'a [u8]) -> MetaSet<'a> {
    MetaSet {
        key: MetaKey::new(key, None),
        flags: Flags(tokens(flags)),
        mode: MetaSetMode::Set,
        quiet: false,
        client_flags: 0,
        exptime: 0,
        compare_cas: None,
        new_cas: None,
        invalidate: false,
        vivify: None,
        value,
    }
}

fn md<'a>(key: &'a [u8], flags: &'a [u8]) -> MetaDelete<'a> {
    MetaDelete {
        key: MetaKey::new(key, None),
        flags: Flags(tokens(flags)),
        quiet: false,
        compare_cas: None,
        new_cas: None,
        invalidate: false,
        exptime: None,
        remove_value: false,
    }
}

fn ma<'a>(key: &'a [u8], flags: &'a [u8]) -> MetaArithmetic<'a> {
    MetaArithmetic {
        key: MetaKey::new(key, None),
        flags: Flags(tokens(flags)),
        quiet: false,
        value: false,
        decrement: false,
        delta: 1,
        initial: 0,
        vivify: None,
        exptime: None,
        compare_cas: None,
        new_cas: None,
    }
}

fn admin(admin: Admin<'_>) -> Vec<Event> {
    request(Request::Admin(admin))
}

fn obsolete(command: Command, reply: &'static [u8]) -> Vec<Event> {
    admin(Admin::Obsolete {
        command,
        reply,
        noreply: false,
    })
}

/// `text`, with `<250>` and `<251>` replaced by keys of that length, and `<2000>` by that many bytes.
fn expand(text: &str) -> Vec<u8> {
    [250, 251, 2000]
        .iter()
        .fold(text.to_string(), |text, &n| text.replace(&format!("<{n}>"), &"k".repeat(n)))
        .into_bytes()
}

fn classic_table() -> Vec<(&'static str, Vec<Event>)> {
    let get = |keys: &'static str, with_cas| {
        request(Request::Get {
            keys: Keys {
                words: tokens(keys.as_bytes()),
                is_last: true,
            },
            with_cas,
        })
    };
    let gat = |exptime, keys: &'static str, with_cas| {
        request(Request::GetAndTouch {
            exptime,
            keys: Keys {
                words: tokens(keys.as_bytes()),
                is_last: true,
            },
            with_cas,
        })
    };
    let store = |store| request(Request::Store(store));
    let delete = |key: &'static str, noreply| {
        request(Request::Delete {
            key: key.as_bytes(),
            noreply,
        })
    };
    let count = |delta, decrement, noreply| {
        request(Request::Arithmetic {
            key: b"k",
            delta,
            decrement,
            noreply,
        })
    };
    let touch = |exptime, noreply| {
        request(Request::Touch {
            key: b"k",
            exptime,
            noreply,
        })
    };
    vec![
        ("get a\r\n", get("a", false)),
        ("get  a  b \r\n", get("a  b ", false)),
        ("get a\n", get("a", false)),
        (" get a\r\n", get("a", false)),
        ("gets a b\r\n", get("a b", true)),
        ("get a\rb\tc\r\n", get("a\rb\tc", false)),
        ("get / HTTP/1.1\r\n", get("/ HTTP/1.1", false)),
        ("get\r\n", error("format")),
        ("gets \r\n", error("format")),
        ("get <251>\r\n", error("format")),
        ("get a <251> b\r\n", error("format")),
        ("gat 10 a b\r\n", gat(10, "a b", false)),
        ("gats -1 a\r\n", gat(-1, "a", true)),
        ("gat\r\n", error("format")),
        ("gat 0\r\n", error("format")),
        ("gat x a\r\n", error("exptime")),
        ("gat x <251>\r\n", error("exptime")),
        ("gat 0 <251>\r\n", error("format")),
        ("set k 0 0 2\r\nhi\r\n", store(set(b"k", b"hi"))),
        ("set k 0 0 2\nhi\r\n", store(set(b"k", b"hi"))),
        ("set k 0 0 0\r\n\r\n", store(set(b"k", b""))),
        ("set k 0 0 4\r\n\r\n\r\n\r\n", store(set(b"k", b"\r\n\r\n"))),
        (
            "set k +4294967301 +5 02 noreply\r\nhi\r\n",
            store(Store {
                flags: 5,
                exptime: 5,
                noreply: true,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "set k 4294967295 -1 2\r\nhi\r\n",
            store(Store {
                flags: u32::MAX,
                exptime: -1,
                ..set(b"k", b"hi")
            }),
        ),
        ("set k 0 0 2 more words\r\nhi\r\n", store(set(b"k", b"hi"))),
        (
            "add k 0 0 2\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Add,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "replace k 0 0 2\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Replace,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "append k 0 0 2\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Append,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "prepend k 0 0 2\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Prepend,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "cas k 0 0 2 18446744073709551615\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Cas,
                cas: u64::MAX,
                ..set(b"k", b"hi")
            }),
        ),
        (
            "cas k 0 0 2 7 noreply\r\nhi\r\n",
            store(Store {
                verb: StoreVerb::Cas,
                cas: 7,
                noreply: true,
                ..set(b"k", b"hi")
            }),
        ),
        ("set k 0 0\r\n", error("format")),
        ("set k 0 0 x\r\n", error("format")),
        ("set k 0 0 -1\r\n", error("format")),
        ("set k 0 0 +2\r\n", error("format")),
        ("set k 0 0 2147483646\r\n", error("format")),
        ("set k x 0 2\r\nhi\r\n", error("format")),
        ("set k -1 0 2\r\nhi\r\n", error("format")),
        ("set k +-1 0 2\r\nhi\r\n", error("format")),
        ("set k 0 x 2\r\nhi\r\n", error("format")),
        ("set k 0 x 2 noreply\r\nhi\r\n", vec![]),
        ("set <251> 0 0 2\r\nhi\r\n", error("format")),
        ("set <251> 0 0 2 noreply\r\nhi\r\n", vec![]),
        ("cas k 0 0 2\r\nhi\r\n", error("format")),
        ("cas k 0 0 2 x\r\nhi\r\n", error("format")),
        ("cas k 0 0 2 noreply\r\nhi\r\n", vec![]),
        ("set k 0 0 2\r\nhixx", error("chunk")),
        ("set k 0 0 2\r\nhi\n\n", error("chunk")),
        ("set k 0 0 2 noreply\r\nhixx", vec![]),
        ("set k 0 0 2000\r\n<2000>\r\n", forgotten(b"k")),
        ("add k 0 0 2000\r\n<2000>\r\n", too_large()),
        (
            "set k 0 0 2000 noreply\r\n<2000>\r\n",
            vec![Event::TooLarge(Some(b"k".to_vec()))],
        ),
        ("delete k\r\n", delete("k", false)),
        ("delete k noreply\r\n", delete("k", true)),
        ("delete k 0 noreply\r\n", delete("k", true)),
        ("delete k 5\r\n", delete("k", false)),
        ("delete noreply\r\n", delete("noreply", false)),
        ("delete\r\n", error("format")),
        ("delete <251>\r\n", error("format")),
        ("delete <251> noreply\r\n", vec![]),
        ("incr k 1\r\n", count(1, false, false)),
        ("decr k 18446744073709551615 noreply\r\n", count(u64::MAX, true, true)),
        ("incr k\r\n", error("format")),
        ("incr <251> 1\r\n", error("format")),
        ("incr k x\r\n", error("delta")),
        ("incr k -1\r\n", error("delta")),
        ("decr k 18446744073709551616\r\n", error("delta")),
        ("incr k x noreply\r\n", vec![]),
        ("incr k noreply\r\n", vec![]),
        ("touch k 100\r\n", touch(100, false)),
        ("touch k -5 noreply\r\n", touch(-5, true)),
        ("touch k 2147483647\r\n", touch(i32::MAX, false)),
        ("touch k 2147483648\r\n", error("exptime")),
        ("touch k\r\n", error("format")),
        ("touch k x\r\n", error("exptime")),
        ("touch k -\r\n", error("exptime")),
        ("touch k noreply\r\n", vec![]),
    ]
}

fn admin_table() -> Vec<(&'static str, Vec<Event>)> {
    let flush = |delay, noreply| admin(Admin::FlushAll { delay, noreply });
    let ok = |command| obsolete(command, b"OK\r\n");
    let not = |command| obsolete(command, b"ERROR\r\n");
    let dump = |format, what: &'static str| {
        admin(Admin::Dump {
            format,
            what: what.as_bytes(),
        })
    };
    vec![
        ("version\r\n", admin(Admin::Version)),
        ("version 1\r\n", admin(Admin::Version)),
        ("quit\r\n", admin(Admin::Quit)),
        ("stats\r\n", admin(Admin::Stats { argument: b"" })),
        ("stats  items \r\n", admin(Admin::Stats { argument: b"items" })),
        (
            "stats cachedump 1 0\r\n",
            admin(Admin::Stats {
                argument: b"cachedump 1 0",
            }),
        ),
        ("watch\r\n", admin(Admin::Watch { what: b"" })),
        (
            "watch fetchers evictions\r\n",
            admin(Admin::Watch {
                what: b"fetchers evictions",
            }),
        ),
        ("watch foo\r\n", error("command")),
        ("watch f\r\n", error("command")),
        ("flush_all\r\n", flush(0, false)),
        ("flush_all noreply\r\n", flush(0, true)),
        ("flush_all noreply noreply\r\n", vec![]),
        ("flush_all 10\r\n", flush(10, false)),
        ("flush_all -5 noreply\r\n", flush(-5, true)),
        ("flush_all 0 1 2\r\n", flush(0, false)),
        ("flush_all x\r\n", error("exptime")),
        ("flush_all noreply 0\r\n", error("exptime")),
        ("flush_all x noreply\r\n", vec![]),
        (
            "verbosity 1\r\n",
            admin(Admin::Verbosity {
                level: 1,
                noreply: false,
            }),
        ),
        ("verbosity 1 noreply\r\n", admin(Admin::Verbosity { level: 1, noreply: true })),
        ("verbosity\r\n", error("format")),
        ("verbosity x\r\n", error("format")),
        ("verbosity noreply\r\n", vec![]),
        (
            "cache_memlimit 64\r\n",
            admin(Admin::CacheMemlimit {
                megabytes: 64,
                noreply: false,
            }),
        ),
        ("cache_memlimit\r\n", error("command")),
        ("cache_memlimit x\r\n", error("command")),
        (
            "cache_memlimit 7\r\n",
            refused("MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ),
        (
            "cache_memlimit 1000000001\r\n",
            refused("MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"),
        ),
        ("shutdown\r\n", admin(Admin::Shutdown { graceful: false })),
        ("shutdown graceful\r\n", admin(Admin::Shutdown { graceful: true })),
        ("shutdown now\r\n", refused("CLIENT_ERROR invalid shutdown mode\r\n")),
        ("refresh_certs\r\n", admin(Admin::RefreshCerts { noreply: false })),
        ("lru_crawler metadump all\r\n", dump(DumpFormat::Metadump, "all")),
        ("lru_crawler metadump 1,,2\r\n", dump(DumpFormat::Metadump, "1,,2")),
        ("lru_crawler mgdump hash\r\n", dump(DumpFormat::Mgdump, "hash")),
        ("lru_crawler metadump x\r\n", refused("BADCLASS invalid class id\r\n")),
        ("lru_crawler metadump ,\r\n", refused("BADCLASS invalid class id\r\n")),
        ("lru_crawler metadump 0\r\n", refused("BADCLASS invalid class id\r\n")),
        ("lru_crawler metadump 64\r\n", refused("BADCLASS invalid class id\r\n")),
        ("lru_crawler metadump all x\r\n", error("command")),
        ("lru_crawler metadump\r\n", not(Command::LruCrawler)),
        ("lru_crawler\r\n", error("command")),
        ("lru_crawler enable\r\n", ok(Command::LruCrawler)),
        (
            "lru_crawler enable noreply\r\n",
            admin(Admin::Obsolete {
                command: Command::LruCrawler,
                reply: b"ERROR\r\n",
                noreply: true,
            }),
        ),
        ("lru_crawler sleep 5\r\n", ok(Command::LruCrawler)),
        (
            "lru_crawler sleep 5000000\r\n",
            obsolete(Command::LruCrawler, b"CLIENT_ERROR sleep must be one second or less\r\n"),
        ),
        (
            "lru_crawler tocrawl x\r\n",
            obsolete(Command::LruCrawler, b"CLIENT_ERROR bad command line format\r\n"),
        ),
        ("lru_crawler crawl 1,2\r\n", ok(Command::LruCrawler)),
        (
            "lru_crawler crawl 99\r\n",
            obsolete(Command::LruCrawler, b"BADCLASS invalid class id\r\n"),
        ),
        ("slabs\r\n", not(Command::Slabs)),
        (
            "slabs reassign 1 1\r\n",
            obsolete(Command::Slabs, b"SAME src and dst class are identical\r\n"),
        ),
        (
            "slabs reassign 1 2\r\n",
            obsolete(Command::Slabs, b"BADCLASS invalid src or dst class id\r\n"),
        ),
        (
            "slabs reassign a b\r\n",
            obsolete(Command::Slabs, b"CLIENT_ERROR bad command line format\r\n"),
        ),
        ("slabs automove 1\r\n", ok(Command::Slabs)),
        ("slabs automove 3\r\n", not(Command::Slabs)),
        (
            "slabs automove x\r\n",
            obsolete(Command::Slabs, b"CLIENT_ERROR bad command line format\r\n"),
        ),
        ("slabs automove ratio 0.8\r\n", ok(Command::Slabs)),
        ("slabs automove window 10\r\n", ok(Command::Slabs)),
        (
            "slabs automove 1 noreply\r\n",
            admin(Admin::Obsolete {
                command: Command::Slabs,
                reply: b"OK\r\n",
                noreply: true,
            }),
        ),
        ("lru mode flat\r\n", ok(Command::Lru)),
        ("lru mode x\r\n", not(Command::Lru)),
        ("lru tune 10 25 0.1 2.0\r\n", ok(Command::Lru)),
        (
            "lru tune 50 40 0.1 2.0\r\n",
            obsolete(Command::Lru, b"ERROR hot and warm pcts must not exceed 80\r\n"),
        ),
        (
            "lru tune 10 25 0 2.0\r\n",
            obsolete(Command::Lru, b"ERROR hot/warm age factors must be greater than 0\r\n"),
        ),
        ("lru temp_ttl -1\r\n", ok(Command::Lru)),
        ("lru\r\n", not(Command::Lru)),
        ("extstore item_age 5\r\n", error("command")),
        ("misbehave\r\n", error("command")),
        ("bget k\r\n", error("command")),
        ("foo\r\n", error("command")),
        ("foo noreply\r\n", vec![]),
        ("GET a\r\n", error("command")),
        ("HTTP/1.1\r\n", error("command")),
        ("foo HTTP/1.1 x\r\n", error("command")),
        ("\r\n", error("format")),
        ("\n", error("format")),
        ("a\r\n", error("format")),
        ("ab\n", error("command")),
    ]
}

fn meta_table() -> Vec<(&'static str, Vec<Event>)> {
    let mget = |get| request(Request::Meta(Meta::Get(get)));
    let mset = |set| request(Request::Meta(Meta::Set(set)));
    let mdel = |delete| request(Request::Meta(Meta::Delete(delete)));
    let count = |count| request(Request::Meta(Meta::Arithmetic(count)));
    let foo = || MetaKey::new(b"Zm9v", crate::base64::decode(b"Zm9v"));
    vec![
        ("mn\r\n", request(Request::Meta(Meta::Noop))),
        ("mn\n", request(Request::Meta(Meta::Noop))),
        ("mn x y\r\n", request(Request::Meta(Meta::Noop))),
        ("mg k\r\n", mget(mg(b"k", b""))),
        ("mg k s t c f l h k O1 P L\r\n", mget(mg(b"k", b"s t c f l h k O1 P L"))),
        (
            "mg k v q u C1 E2 N3 R4 T-5\r\n",
            mget(MetaGet {
                value: true,
                quiet: true,
                no_bump: true,
                unless_cas: Some(1),
                new_cas: Some(2),
                vivify: Some(3),
                recache_s: Some(4),
                exptime: Some(-5),
                ..mg(b"k", b"v q u C1 E2 N3 R4 T-5")
            }),
        ),
        (
            "mg Zm9v b\r\n",
            mget(MetaGet {
                key: foo(),
                ..mg(b"", b"b")
            }),
        ),
        ("mg k F1 MX D5 J6 I x\r\n", mget(mg(b"k", b"F1 MX D5 J6 I x"))),
        ("mg\r\n", error("format")),
        ("mg <251>\r\n", error("format")),
        ("mg k v v\r\n", error("duplicate")),
        ("mg k v zz v\r\n", error("invalid")),
        ("mg k 5\r\n", error("invalid")),
        ("mg k -\r\n", error("invalid")),
        ("mg k \u{80}\r\n", error("invalid")),
        ("mg k Tx\r\n", error("token")),
        ("mg k T\r\n", error("token")),
        ("mg k C-1\r\n", error("token")),
        ("mg k Tx Z\r\n", error("invalid")),
        ("mg k Fx\r\n", error("format")),
        ("mg k D\r\n", refused("CLIENT_ERROR invalid numeric delta value\r\n")),
        ("mg k Tx Jx\r\n", refused("CLIENT_ERROR invalid numeric initial value\r\n")),
        ("mg k Jx Tx\r\n", error("token")),
        ("mg !!! b\r\n", error("key")),
        ("mg <250> b\r\n", error("key")),
        ("mg k q Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", error("opaque")),
        (
            "mg k Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n",
            mget(mg(b"k", b"Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")),
        ),
        ("mg k a b c d e f g h i j k l m n o p q r s\r\n", error("many")),
        ("ms k 2\r\nhi\r\n", mset(ms(b"k", b"", b"hi"))),
        (
            "ms k 2 q F5 T6 C7 E8 I N9 MA k c s O1\r\nhi\r\n",
            mset(MetaSet {
                mode: MetaSetMode::Append,
                quiet: true,
                client_flags: 5,
                exptime: 6,
                compare_cas: Some(7),
                new_cas: Some(8),
                invalidate: true,
                vivify: Some(9),
                ..ms(b"k", b"q F5 T6 C7 E8 I N9 MA k c s O1", b"hi")
            }),
        ),
        (
            "ms k 2 ME\r\nhi\r\n",
            mset(MetaSet {
                mode: MetaSetMode::Add,
                ..ms(b"k", b"ME", b"hi")
            }),
        ),
        (
            "ms k 2 MP\r\nhi\r\n",
            mset(MetaSet {
                mode: MetaSetMode::Prepend,
                ..ms(b"k", b"MP", b"hi")
            }),
        ),
        (
            "ms k 2 MR\r\nhi\r\n",
            mset(MetaSet {
                mode: MetaSetMode::Replace,
                ..ms(b"k", b"MR", b"hi")
            }),
        ),
        ("ms k 2 MSET\r\nhi\r\n", mset(ms(b"k", b"MSET", b"hi"))),
        (
            "ms Zm9v 2 b\r\nhi\r\n",
            mset(MetaSet {
                key: foo(),
                ..ms(b"", b"b", b"hi")
            }),
        ),
        ("ms\r\n", error("format")),
        ("ms k\r\n", error("format")),
        ("ms k S2\r\n", error("format")),
        ("ms k -1\r\n", error("format")),
        ("ms <251> 2\r\nhi\r\n", error("format")),
        ("ms k 2 zz\r\nhi\r\n", error("invalid")),
        ("ms k 2 -x\r\nhi\r\n", error("invalid")),
        ("ms k 2 q q\r\nhi\r\n", error("duplicate")),
        ("ms k 2 M\r\nhi\r\n", refused("CLIENT_ERROR invalid mode for ms M token\r\n")),
        ("ms k 2 Me\r\nhi\r\n", refused("CLIENT_ERROR invalid mode for ms M token\r\n")),
        ("ms k 2 F4294967296\r\nhi\r\n", error("format")),
        ("ms k 2 b\r\nhi\r\n", error("key")),
        ("ms k 2 q\r\nhixx", error("chunk")),
        ("ms k 2 q Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nhi\r\n", error("opaque")),
        ("ms k 2000 q MA\r\n<2000>\r\n", forgotten(b"k")),
        ("ms Zm9v 2000 b\r\n<2000>\r\n", forgotten(b"foo")),
        ("md k\r\n", mdel(md(b"k", b""))),
        (
            "md k q C1 E2 I T3 x k O1\r\n",
            mdel(MetaDelete {
                quiet: true,
                compare_cas: Some(1),
                new_cas: Some(2),
                invalidate: true,
                exptime: Some(3),
                remove_value: true,
                ..md(b"k", b"q C1 E2 I T3 x k O1")
            }),
        ),
        ("md\r\n", error("format")),
        ("md k zz\r\n", error("invalid")),
        ("md k q q\r\n", error("duplicate")),
        ("md !!! b\r\n", error("key")),
        ("ma k\r\n", count(ma(b"k", b""))),
        (
            "ma k q v MD D2 J3 N4 T5 C6 E7 t c\r\n",
            count(MetaArithmetic {
                quiet: true,
                value: true,
                decrement: true,
                delta: 2,
                initial: 3,
                vivify: Some(4),
                exptime: Some(5),
                compare_cas: Some(6),
                new_cas: Some(7),
                ..ma(b"k", b"q v MD D2 J3 N4 T5 C6 E7 t c")
            }),
        ),
        ("ma k M+\r\n", count(ma(b"k", b"M+"))),
        (
            "ma k M-\r\n",
            count(MetaArithmetic {
                decrement: true,
                ..ma(b"k", b"M-")
            }),
        ),
        ("ma\r\n", error("format")),
        ("ma <251>\r\n", error("format")),
        ("ma k q q\r\n", error("either")),
        ("ma k Dx\r\n", error("either")),
        ("ma !!! b\r\n", error("either")),
        ("ma k MX\r\n", refused("CLIENT_ERROR invalid mode for ma M token\r\n")),
        ("ma k Oaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n", error("opaque")),
        (
            "me k\r\n",
            request(Request::Meta(Meta::Debug {
                key: MetaKey::new(b"k", None),
            })),
        ),
        ("me Zm9v b\r\n", request(Request::Meta(Meta::Debug { key: foo() }))),
        ("me\r\n", error("format")),
        ("me <251>\r\n", error("format")),
        ("me !!! b\r\n", error("format")),
    ]
}

fn table() -> Vec<(Vec<u8>, Vec<Event>)> {
    let tables = [classic_table(), admin_table(), meta_table()];
    tables
        .into_iter()
        .flatten()
        .map(|(text, events)| (expand(text), events))
        .collect()
}

#[test]
fn every_line_is_what_the_table_says_whole_and_byte_by_byte() {
    for (stream, expected) in table() {
        let shown = String::from_utf8_lossy(&stream);
        assert_eq!(events(&stream, []), expected, "{shown:?}");
        assert_eq!(events(&stream, 0..stream.len()), expected, "{shown:?} byte by byte");
    }
}

#[test]
fn a_stream_of_all_lines_gives_the_same_events_however_it_is_cut() {
    let (streams, expected): (Vec<_>, Vec<_>) = table().into_iter().unzip();
    let stream = streams.concat();
    let expected: Vec<Event> = expected.into_iter().flatten().collect();
    assert_eq!(events(&stream, []), expected);
    assert_eq!(events(&stream, 0..stream.len()), expected);
    for size in [2, 3, 7, 64, 1000, 4096] {
        assert_eq!(
            events(&stream, (0..stream.len()).step_by(size)),
            expected,
            "in pieces of {size}"
        );
    }
}

#[test]
fn every_split_point_of_a_pipeline_gives_the_same_events() {
    let stream = expand("set a 1 2 3\r\nabc\r\nget a b\r\nset b 0 0 2000\r\n<2000>\r\nms c 2 q\r\nhixxmg c v\r\nmn\r\n");
    let whole = events(&stream, []);
    assert_eq!(whole.len(), 7);
    for cut in 0..=stream.len() {
        assert_eq!(events(&stream, [cut]), whole, "cut at {cut}");
    }
}

#[test]
fn http_closes_and_so_does_a_line_without_end() {
    for request in [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST /x HTTP/1.0\nset k 0 0 1\r\nx\r\n",
        "foo HTTP/\r\n",
    ] {
        assert_eq!(events(request.as_bytes(), []), [Event::Closed]);
        assert_eq!(events(request.as_bytes(), 0..request.len()), [Event::Closed]);
    }
    let line = |len: usize| [b"stats ".as_slice(), &vec![b'x'; len - 6], b"\n"].concat();
    for (len, closed) in [(LINE_LEN_MAX, false), (LINE_LEN_MAX + 1, true), (10 * LINE_LEN_MAX, true)] {
        let line = line(len);
        assert_eq!(events(&line, []) == [Event::Closed], closed, "{len}");
        assert_eq!(events(&line, 0..line.len()) == [Event::Closed], closed, "{len} byte by byte");
    }
}

/// The result of one line of many keys that arrives in chunks of this size: its keys, the keys of the longest piece, how often its end was
/// seen, what was refused, and the most bytes that had to wait.
#[allow(clippy::type_complexity, reason = "five things seen, each named where it is used")]
fn keys_of(line: &[u8], chunk: usize) -> (Vec<Vec<u8>>, usize, usize, Vec<&'static [u8]>, usize) {
    let mut decoder = Decoder::new(limits());
    let (mut keys_seen, mut longest, mut ends, mut refusals, mut waiting) = (Vec::new(), 0, 0, Vec::new(), 0);
    let mut input = Vec::new();
    for bytes in line.chunks(chunk) {
        input.extend_from_slice(bytes);
        loop {
            let consumed = match decoder.decode(&input) {
                Decoded::Incomplete { .. } => break,
                Decoded::Request {
                    consumed,
                    request: Request::Get { keys, .. } | Request::GetAndTouch { keys, exptime: 7, .. },
                } => {
                    ends += usize::from(keys.are_last());
                    let before = keys_seen.len();
                    keys_seen.extend(keys.map(<[u8]>::to_vec));
                    longest = longest.max(keys_seen.len() - before);
                    consumed
                }
                Decoded::Refused {
                    consumed,
                    reply,
                    close: false,
                    ..
                } => {
                    refusals.extend((!reply.is_empty()).then_some(reply));
                    consumed
                }
                other => panic!("{other:?}"),
            };
            input.drain(..consumed);
            if input.is_empty() {
                break;
            }
        }
        waiting = waiting.max(input.len());
    }
    assert_eq!(input, b"", "all is consumed");
    (keys_seen, longest, ends, refusals, waiting)
}

#[test]
fn a_line_of_many_keys_comes_in_pieces_however_long_it_is() {
    let keys: Vec<Vec<u8>> = (0..200_000).map(|n| format!("key{n}").into_bytes()).collect();
    for (count, chunk) in [
        (300, 1),
        (300, 1000),
        (5000, 100),
        (5000, 1 << 20),
        (200_000, 1400),
        (200_000, 8 << 20),
    ] {
        for name in ["get", "gets", "gat 7", "gats  7"] {
            let keys = &keys[..count];
            let line = [name.as_bytes(), b" ", &keys.join(&b' '), b"\r\n"].concat();
            let (seen, longest, ends, refusals, waiting) = keys_of(&line, chunk);
            assert!(seen == keys, "{name}: {} of {count} keys", seen.len());
            assert!(longest <= LINE_LEN_MAX / 2, "{name}: a piece of {longest} keys");
            assert_eq!((ends, refusals), (1, vec![]), "{name}");
            assert!(
                waiting <= chunk.max(limits().keys_checked_len),
                "{name}: {waiting} bytes wait"
            );
        }
    }
}

#[test]
fn a_long_key_in_a_long_line_refuses_all_or_ends_the_answer() {
    let long = [b"get ".as_slice(), &[b'k'; 251]].concat();
    for (keys_before, chunk, answered) in [
        (1000, 100, 0),
        (1000, 1 << 20, 0),
        (20_000, 1000, 15_000),
        (20_000, 1 << 20, 15_000),
    ] {
        let line = [
            b"get".as_slice(),
            &b" abcd".repeat(keys_before),
            &long[3..],
            b" more keys\r\n",
        ]
        .concat();
        let (seen, _, ends, refusals, _) = keys_of(&line, chunk);
        assert_eq!(refusals, [BAD_FORMAT]);
        assert!(
            seen.len() >= answered && seen.len() <= keys_before && ends == 0,
            "{} keys, {ends} ends",
            seen.len()
        );
    }
    // No keys at all, a wrong exptime, and a word without end.
    for (line, reply) in [
        ([b"get".to_vec(), vec![b' '; 100_000], b"\r\n".to_vec()].concat(), BAD_FORMAT),
        (
            [b"gat x".to_vec(), b" key".repeat(30_000), b"\n".to_vec()].concat(),
            BAD_EXPTIME,
        ),
        ([b"get ".to_vec(), vec![b'k'; 1 << 20], b"\n".to_vec()].concat(), BAD_FORMAT),
    ] {
        for chunk in [1000, 4 << 20] {
            let (seen, _, ends, refusals, waiting) = keys_of(&line, chunk);
            assert_eq!((seen.len(), ends, refusals), (0, 0, vec![reply]));
            assert!(waiting <= chunk.max(limits().keys_checked_len));
        }
    }
}

#[test]
fn a_piece_that_was_not_consumed_comes_again() {
    let line = [b"get".as_slice(), &b" abcd".repeat(1000), b"\r\nget a b\r\nmn\r\n"].concat();
    let mut decoder = Decoder::new(limits());
    let (mut at, mut keys_seen) = (0, 0);
    loop {
        let once = decoder.decode(&line[at..]);
        if let Decoded::Request { .. } = once {
            decoder.repeat();
            assert_eq!(decoder.decode(&line[at..]), once);
        }
        match once {
            Decoded::Request {
                request: Request::Meta(Meta::Noop),
                ..
            } => break,
            Decoded::Request {
                consumed,
                request: Request::Get { keys, .. },
            } => {
                keys_seen += keys.count();
                at += consumed;
            }
            Decoded::Refused {
                consumed, reply: b"", ..
            } => at += consumed,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(keys_seen, 1002);
}

#[test]
fn an_error_in_the_middle_of_a_long_line_ends_its_answer() {
    let line = [b"get".as_slice(), &b" abcd".repeat(3000), b"\r\nmn\r\n"].concat();
    let mut decoder = Decoder::new(limits());
    let (mut at, mut pieces) = (0, 0);
    loop {
        match decoder.decode(&line[at..]) {
            Decoded::Request {
                request: Request::Meta(Meta::Noop),
                ..
            } => break,
            Decoded::Request { consumed, .. } => {
                pieces += 1;
                decoder.end_answer();
                at += consumed;
            }
            Decoded::Refused {
                consumed, reply: b"", ..
            } => at += consumed,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pieces, 1);
}

#[test]
fn a_huge_declared_length_asks_for_bytes_or_is_swallowed_but_never_takes_memory() {
    let line = b"set k 0 0 1073741824\r\n";
    let mut roomy = Decoder::new(Limits {
        item_size_max: 2 << 30,
        ..limits()
    });
    assert_eq!(
        roomy.decode(line),
        Decoded::Incomplete {
            need: line.len() + (1 << 30) + 2
        }
    );

    let mut decoder = Decoder::new(limits());
    assert!(matches!(
        decoder.decode(line),
        Decoded::TooLarge {
            consumed: 22,
            forget: Some(_),
        }
    ));
    let megabyte = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        assert_eq!(decoder.decode(&megabyte), discard(1 << 20));
    }
    assert_eq!(decoder.decode(b""), Decoded::Incomplete { need: 1 });
    assert_eq!(decoder.decode(b"\r"), discard(1));
    assert_eq!(decoder.decode(b"\nmn\r\n"), answer_error(1, TOO_LARGE));
    assert_eq!(
        decoder.decode(b"mn\r\n"),
        Decoded::Request {
            consumed: 4,
            request: Request::Meta(Meta::Noop)
        }
    );
}

#[test]
fn the_size_limit_is_memcacheds() {
    // Observed with memcached -I 1m: the largest value for these keys and flags.
    for (key_len, flags, value_len_max) in [(1, 0, 1_048_516), (1, 1, 1_048_512), (100, 0, 1_048_417), (250, 7, 1_048_263)] {
        for (value_len, fits) in [(value_len_max, true), (value_len_max + 1, false)] {
            let line = format!("set {} {flags} 0 {value_len}\r\n", "k".repeat(key_len));
            let decoded = Decoder::new(Limits::default()).decode(line.as_bytes());
            assert_eq!(
                matches!(decoded, Decoded::Incomplete { .. }),
                fits,
                "{key_len} {flags} {value_len}"
            );
        }
    }
}

#[test]
fn base64_keys_are_stored_decoded_and_known_as_sent() {
    let mut decoder = Decoder::new(limits());
    let Decoded::Request {
        request: Request::Meta(Meta::Get(get)),
        ..
    } = decoder.decode(b"mg Zm9v b k Lx O7\r\n")
    else {
        panic!("not a meta get")
    };
    assert_eq!(
        (get.key.sent, get.key.stored(), get.key.is_binary()),
        (b"Zm9v".as_slice(), b"foo".as_slice(), true)
    );
    assert_eq!(get.flags.collect::<Vec<_>>(), [b"b".as_slice(), b"k", b"O7"]);
}

#[test]
fn a_matching_cas_takes_the_value_out_of_the_answer() {
    let get = MetaGet {
        value: true,
        unless_cas: Some(5),
        ..mg(b"k", b"v C5")
    };
    assert!(get.wants_value(4) && !get.wants_value(5));
    assert!(!MetaGet { value: false, ..get }.wants_value(4));
}

#[test]
fn another_decoder_continues_between_any_two_requests() {
    let long = [b"gat 7".as_slice(), &b" abcd".repeat(3000), b"\r\nmn\r\n"].concat();
    let refused = [b"get ".as_slice(), &b"k".repeat(251), &b" abcd".repeat(3000), b"\r\nmn\r\n"].concat();
    let mut packets = Vec::new();
    let head = binary::Head {
        opcode: 0x0a,
        opaque: [0; 4],
    };
    (0..3).for_each(|_| binary::request(&mut packets, head, 0, [b"", b"", b""]));
    for stream in [&long[..], &refused, &packets, b"mn\r\nset k 0 0 1\r\nv\r\nmn\r\n"] {
        let mut counts = [0, 0];
        for (count, is_replaced) in counts.iter_mut().zip([false, true]) {
            let mut decoder = Decoder::new(limits());
            let mut at = 0;
            while at < stream.len() {
                at += match decoder.decode(&stream[at..]) {
                    Decoded::Request { consumed, .. } => {
                        *count += 1;
                        consumed
                    }
                    Decoded::Refused {
                        consumed, close: false, ..
                    } => consumed,
                    other => panic!("{other:?}"),
                };
                if is_replaced {
                    decoder = Decoder::continuing(limits(), decoder.progress().unwrap());
                }
            }
        }
        assert_eq!(counts[0], counts[1]);
        assert!(counts[0] > 0);
    }
    let mut dropping = Decoder::new(limits());
    let _ = dropping.decode(b"set k 0 0 5000\r\n");
    assert_eq!(dropping.progress(), None, "a value is being dropped");
}
