//! Conversations that are too long or too regular to be written down: large multi-gets, deep pipelines, every order of flags,
//! and sizes swept across a border.

use crate::pattern::Pattern;
use crate::table::{Conversation, Expected, Part, Request, Step};

/// All of them.
pub fn conversations() -> Vec<Conversation> {
    let mut all = vec![
        many_keys("get of 5,000 keys, all present", 5_000, |_| true),
        many_keys("get of 5,000 keys, every third present", 5_000, |n| n % 3 == 0),
        many_keys("get of 20,000 keys, none present", 20_000, |_| false),
        many_long_keys(),
        many_uniques(),
        pipeline_of_sets_and_gets(),
        pipeline_of_quiet_metas(),
        pipeline_of_errors(),
        pipeline_of_noreply(),
        pipeline_of_counters(),
    ];
    all.extend(flag_orders());
    all.extend(sizes());
    all.extend(largest_items());
    all.extend(key_lengths());
    all.extend(counter_widths());
    all
}

fn conversation(name: &str, exchanges: Vec<(Vec<u8>, Vec<u8>)>) -> Conversation {
    let steps = exchanges.into_iter().map(|(request, reply)| Step {
        request: Request(vec![Part::Literal(request)]),
        poll: false,
        expected: Expected::Reply {
            reply: Pattern::literal(reply),
            close: false,
        },
    });
    Conversation {
        steps: steps.collect(),
        ..Conversation::new("generated", name)
    }
}

fn many_keys(name: &str, count: u32, present: impl Fn(u32) -> bool) -> Conversation {
    let (mut sets, mut get, mut values) = (String::new(), String::from("get"), String::new());
    for n in 0..count {
        get += &format!(" many:{n}");
        if present(n) {
            sets += &format!("set many:{n} {n} 0 4 noreply\r\nv{:03}\r\n", n % 1000);
            values += &format!("VALUE many:{n} {n} 4\r\nv{:03}\r\n", n % 1000);
        }
    }
    conversation(
        name,
        vec![
            ((sets + "mn\r\n").into(), "MN\r\n".into()),
            ((get + "\r\n").into(), (values + "END\r\n").into()),
        ],
    )
}

fn many_long_keys() -> Conversation {
    let key = |n: u32| format!("{n:0>250}");
    let (mut sets, mut get, mut values) = (String::new(), String::from("get"), String::new());
    for n in 0..400 {
        sets += &format!("set {} 0 0 1 noreply\r\nx\r\n", key(n));
        get += &format!(" {}", key(n));
        values += &format!("VALUE {} 0 1\r\nx\r\n", key(n));
    }
    conversation(
        "get of 400 keys of 250 bytes",
        vec![
            ((sets + "mn\r\n").into(), "MN\r\n".into()),
            ((get + "\r\n").into(), (values + "END\r\n").into()),
        ],
    )
}

fn many_uniques() -> Conversation {
    let mut request = String::from("gets");
    for n in 0..3_000 {
        request += &format!(" nowhere:{n}");
    }
    conversation(
        "gets of 3,000 keys, none present",
        vec![((request + "\r\n").into(), "END\r\n".into())],
    )
}

fn pipeline_of_sets_and_gets() -> Conversation {
    let (mut request, mut reply) = (String::new(), String::new());
    for n in 0..200 {
        let value = "z".repeat(n * 7);
        request += &format!("set pipe:{n} {n} 0 {}\r\n{value}\r\nget pipe:{n}\r\n", value.len());
        reply += &format!("STORED\r\nVALUE pipe:{n} {n} {}\r\n{value}\r\nEND\r\n", value.len());
    }
    conversation("200 sets and 200 gets in one write", vec![(request.into(), reply.into())])
}

fn pipeline_of_quiet_metas() -> Conversation {
    let (mut request, mut reply) = (String::new(), String::new());
    for n in 0..200 {
        request += &format!("ms quiet:{n} 2 q\r\n{:02}\r\n", n % 100);
    }
    for n in 0..400 {
        request += &format!("mg quiet:{n} v q k O{n}\r\n");
        if n < 200 {
            reply += &format!("VA 2 kquiet:{n} O{n}\r\n{:02}\r\n", n % 100);
        }
    }
    for n in 0..400 {
        request += &format!("md quiet:{n} q\r\n");
    }
    for n in 0..200 {
        request += &format!("mg quiet:{n} v q\r\n");
    }
    // NF is no success for md in the sense of protocol.txt "Meta Delete", q: it is said
    for _ in 200..400 {
        reply += "NF\r\n";
    }
    conversation(
        "1,000 quiet meta commands in one write",
        vec![((request + "mn\r\n").into(), (reply + "MN\r\n").into())],
    )
}

fn pipeline_of_errors() -> Conversation {
    let (mut request, mut reply) = (String::new(), String::new());
    for n in 0..100 {
        request += &format!("nonsense {n}\r\nget missing:{n}\r\nincr missing:{n} 1\r\nmg missing:{n} v v\r\n");
        reply += "ERROR\r\nEND\r\nNOT_FOUND\r\nCLIENT_ERROR duplicate flag\r\n";
    }
    conversation("errors between requests in one write", vec![(request.into(), reply.into())])
}

fn pipeline_of_noreply() -> Conversation {
    let mut request = String::from("set silent 0 0 1\r\n0\r\n");
    for _ in 0..500 {
        request += "incr silent 3 noreply\r\ndecr silent 1 noreply\r\ntouch silent 0 noreply\r\ndelete other noreply\r\n";
    }
    conversation(
        "2,000 silent requests in one write",
        vec![(
            (request + "get silent\r\n").into(),
            "STORED\r\nVALUE silent 0 4\r\n1000\r\nEND\r\n".into(),
        )],
    )
}

fn pipeline_of_counters() -> Conversation {
    let (mut request, mut reply) = (String::from("ma count N0 J0 v\r\n"), String::from("VA 1\r\n0\r\n"));
    for n in 1..=300_u32 {
        request += "ma count v\r\n";
        reply += &format!("VA {}\r\n{n}\r\n", n.to_string().len());
    }
    conversation("300 ma in one write", vec![(request.into(), reply.into())])
}

/// Every order of four flags that answer, with and without a value.
fn flag_orders() -> Vec<Conversation> {
    let answers = [('s', "s3"), ('f', "f9"), ('k', "korder"), ('t', "t-1")];
    let mut all = Vec::new();
    for value in [false, true] {
        let mut exchanges = vec![(b"set order 9 0 3\r\nabc\r\n".to_vec(), b"STORED\r\n".to_vec())];
        for order in permutations(answers.len()) {
            let (mut request, mut flags) = (String::from("mg order"), String::new());
            for &index in &order {
                request += &format!(" {}", answers[index].0);
                flags += &format!(" {}", answers[index].1);
            }
            let reply = if value {
                format!("VA 3{flags}\r\nabc\r\n")
            } else {
                format!("HD{flags}\r\n")
            };
            exchanges.push(((request + if value { " v\r\n" } else { "\r\n" }).into(), reply.into()));
        }
        all.push(conversation(
            &format!("mg: all orders of four flags, {} v", if value { "with" } else { "without" }),
            exchanges,
        ));
    }
    all
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(count - 1) {
        for at in 0..count {
            let mut longer = shorter.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

/// Values around every size at which something in a server may change: powers of two, its read buffer, its segments.
fn sizes() -> Vec<Conversation> {
    let mut all = Vec::new();
    for power in 3..20 {
        let mut exchanges = Vec::new();
        for size in [
            (1_usize << power) - 3,
            (1 << power) - 2,
            (1 << power) - 1,
            1 << power,
            (1 << power) + 1,
        ] {
            let value: Vec<u8> = (0..size).map(|n| b'!' + u8::try_from(n * 7 % 90).unwrap_or(0)).collect();
            let key = format!("size:{size}");
            let request = [
                format!("set {key} 0 0 {size}\r\n").as_bytes(),
                &value,
                format!("\r\nget {key}\r\n").as_bytes(),
            ]
            .concat();
            let reply = [
                format!("STORED\r\nVALUE {key} 0 {size}\r\n").as_bytes(),
                &value,
                b"\r\nEND\r\n",
            ]
            .concat();
            exchanges.push((request, reply));
            exchanges.push((format!("delete {key}\r\n").into(), b"DELETED\r\n".to_vec()));
        }
        all.push(conversation(&format!("values of about 2^{power} bytes"), exchanges));
    }
    all
}

/// The largest item, to the byte: memcached counts its own header (57 bytes with the unique), key, client flags and line end.
fn largest_items() -> Vec<Conversation> {
    let mut all = Vec::new();
    for (key_len, flags) in [(1, 0), (1, 5), (250, 0), (250, 5)] {
        let key = "L".repeat(key_len);
        let largest = (1 << 20) - 57 - key_len - if flags == 0 { 0 } else { 4 } - "\r\n".len();
        let value = "v".repeat(largest);
        let exchanges = vec![
            (
                format!("set {key} {flags} 0 {largest}\r\n{value}\r\n"),
                "STORED\r\n".to_string(),
            ),
            (
                format!("get {key}\r\n"),
                format!("VALUE {key} {flags} {largest}\r\n{value}\r\nEND\r\n"),
            ),
            (
                format!("set {key} {flags} 0 {}\r\n{value}v\r\n", largest + 1),
                "SERVER_ERROR object too large for cache\r\n".to_string(),
            ),
            (format!("get {key}\r\n"), "END\r\n".to_string()),
            (format!("ms {key} {largest} F{flags}\r\n{value}\r\n"), "HD\r\n".to_string()),
        ];
        let exchanges = exchanges
            .into_iter()
            .map(|(request, reply)| (request.into_bytes(), reply.into_bytes()))
            .collect();
        let name = format!("the largest item with a key of {key_len} and flags {flags}");
        all.push(conversation(&name, exchanges));
    }
    all
}

/// Every length of a key, through get, delete and the meta commands.
fn key_lengths() -> Vec<Conversation> {
    let exchanges = (1..=250).map(|len| {
        let key = "y".repeat(len);
        let request =
            format!("set {key} 0 0 1\r\nx\r\nget {key}\r\nmg {key} k\r\nincr {key} 1\r\nmd {key} k\r\ndelete {key}\r\n");
        let reply = format!(
            "STORED\r\nVALUE {key} 0 1\r\nx\r\nEND\r\nHD k{key}\r\n\
             CLIENT_ERROR cannot increment or decrement non-numeric value\r\nHD k{key}\r\nNOT_FOUND\r\n"
        );
        (request.into_bytes(), reply.into_bytes())
    });
    vec![conversation("keys of every length", exchanges.collect())]
}

/// incr and decr across every power of ten: a number that grows takes more bytes, one that shrinks keeps them.
fn counter_widths() -> Vec<Conversation> {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for digits in 1..=19_u32 {
        let power = 10_u64.pow(digits);
        let (below, width) = (power - 1, digits as usize + 1);
        up.push((
            format!("set up 0 0 {digits}\r\n{below}\r\nincr up 1\r\nget up\r\n").into(),
            format!("STORED\r\n{power}\r\nVALUE up 0 {width}\r\n{power}\r\nEND\r\n").into(),
        ));
        down.push((
            format!("set down 0 0 {width}\r\n{power}\r\ndecr down 1\r\nget down\r\nincr down 1\r\nget down\r\n").into(),
            format!(
                "STORED\r\n{below}\r\nVALUE down 0 {width}\r\n{below} \r\nEND\r\n{power}\r\nVALUE down 0 {width}\r\n{power}\r\nEND\r\n"
            )
            .into(),
        ));
    }
    // memcached looks for a minus sign beyond the end of a number above 2^63: what lay there before must be nothing
    let alone = |name, exchanges| Conversation {
        own_server: true,
        ..conversation(name, exchanges)
    };
    vec![
        alone("incr across the powers of ten", up),
        alone("decr across the powers of ten", down),
    ]
}
