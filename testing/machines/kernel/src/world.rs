//! A small cache, all of it hot: what the program sees of it, and what user space would answer.
//!
//! The reference is `keyway-proto`: it reads the request and writes the answer, as the server's own path does. What the
//! program may not answer at all (a miss, a command that changes something) has no reference answer.

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use keyway_proto::reply::{self, ItemFacts, MetaCode, MetaCommand};
use keyway_proto::{Decoded, Decoder, Limits, Meta, MetaGet, Request};
use keyway_xdp::config::{Config, Settings, TooManyNetworks};
use keyway_xdp::copy::{ChangeCounts, HotCopy, Item};
use keyway_xdp::hot::{CONTROL_WORDS, HotSet, PAGE_SIZE, Place, STRIPES, UNIT_SIZE};

use crate::frame::{Checksum, Frame, PORT, served};

/// The Unix time of these worlds.
pub const NOW_S: u32 = 1_700_000_000;
/// CLOCK_MONOTONIC of those on the host, ns.
pub const NOW_NS: u64 = 5_000_000_000;
/// The seed of these worlds' hash.
pub const SEED: u64 = 0x1234_5678_9ABC_DEF0;
/// Stripe and flush words that are at rest.
const AT_REST: ChangeCounts = ChangeCounts {
    stripe: 7 << 32 | 7,
    flush: 3 << 32 | 3,
};

/// An item, and how the program is to take it.
#[derive(Clone, Debug)]
pub struct Hot {
    /// key
    pub key: Vec<u8>,
    /// client flags
    pub flags: u32,
    /// CAS unique
    pub cas: u64,
    /// value
    pub value: Vec<u8>,
    /// 0: never
    pub expires_s: u32,
    /// when a delayed flush begins; 0: none is ahead
    pub flush_s: u32,
    /// whether the program may give it out
    pub state: State,
}

/// What is the matter with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// nothing
    Current,
    /// its stripe has changed since it was read
    Changed,
    /// a change of its stripe has begun and not ended
    Changing,
    /// flushed since
    Flushed,
    /// half written
    Torn,
    /// its time is over
    Expired,
}

/// Keys of every length that hashing distinguishes, values of every length that datagrams do, and copies that must not be
/// given out.
pub fn items() -> Vec<Hot> {
    let mut items = Vec::new();
    let mut add = |key: Vec<u8>, value: Vec<u8>, expires_s: u32, state: State| {
        let number = items.len() as u64 + 1;
        let scattered = u32::try_from(number.wrapping_mul(2_654_435_761) & 0xFFFF_FFFF).unwrap_or(0);
        // one of them has an answer that is as short as can be
        let flags = if key == b"z" { 0 } else { scattered >> (number % 32) };
        items.push(Hot {
            key,
            flags,
            cas: number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (number % 64),
            value,
            expires_s,
            flush_s: 0,
            state,
        });
    };
    for len in 1..=250_u8 {
        let key: Vec<u8> = (0..len).map(|at| b'!' + at.wrapping_mul(7).wrapping_add(len) % 94).collect();
        add(key, vec![len; usize::from(len) % 40], 0, State::Current);
    }
    for len in [0, 1, 7, 8, 9, 100, 499, 500, 1000, 1180, 1300, 1340, 1350] {
        add(format!("value{len}").into_bytes(), vec![b'v'; len], 0, State::Current);
    }
    for (number, left) in [1_u32, 9, 10, 99, 100, 2_592_000, 99_999_999].into_iter().enumerate() {
        add(
            format!("ttl{number}").into_bytes(),
            b"t".to_vec(),
            NOW_S + left,
            State::Current,
        );
    }
    add(b"z".to_vec(), Vec::new(), 0, State::Current);
    add(b"line\xff\x80end".to_vec(), b"\r\nEND\r\n\0".to_vec(), 0, State::Current);
    for state in [State::Changed, State::Changing, State::Flushed, State::Torn] {
        add(format!("{state:?}").into_bytes(), b"void".to_vec(), 0, state);
    }
    add(b"Expired".to_vec(), b"void".to_vec(), NOW_S, State::Expired);
    add(b"Expired2".to_vec(), b"void".to_vec(), NOW_S - 1, State::Expired);
    // A flush that is ahead makes no difference to what is shown, and one that has begun to everything.
    for (number, (expires_s, flush_s, state)) in [
        (0, NOW_S + 1, State::Current),
        (NOW_S + 100, NOW_S + 50, State::Current),
        (NOW_S + 50, NOW_S + 100, State::Current),
        (0, NOW_S, State::Expired),
        (NOW_S + 100, NOW_S - 1, State::Expired),
    ]
    .into_iter()
    .enumerate()
    {
        items.push(Hot {
            key: format!("FlushAhead{number}").into_bytes(),
            flags: 0,
            cas: 1,
            value: b"v".to_vec(),
            expires_s,
            flush_s,
            state,
        });
    }
    items
}

/// The settings of these worlds.
pub fn settings(v6: bool) -> Settings {
    let (network, prefix_len): (IpAddr, u8) = if v6 {
        ("fd00::".parse().expect("an address"), 64)
    } else {
        ("10.0.0.0".parse().expect("an address"), 24)
    };
    Settings {
        address: served(v6),
        udp_port: Some(PORT),
        tcp_port: None,
        // the second one shows that the first is not the only one that counts
        allow: vec![("192.0.2.7".parse().expect("an address"), 32), (network, prefix_len)],
        memory: 1 << 20,
        rate: None,
    }
}

/// A hot set in this process's own memory.
pub struct Memory {
    index: Vec<AtomicU64>,
    pages: Vec<AtomicU64>,
    stripes: Vec<AtomicU64>,
    control: Vec<AtomicU64>,
    /// for which these are made
    pub config: Config,
}

impl Memory {
    /// Empty.
    ///
    /// # Errors
    ///
    /// When the settings cannot be.
    pub fn new(settings: &Settings) -> Result<Self, TooManyNetworks> {
        let config = Config::new(settings)?;
        let zeroed = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (index, pages) = config.words();
        Ok(Self {
            index: zeroed(index),
            pages: zeroed(pages),
            stripes: zeroed(STRIPES + 1),
            control: zeroed(CONTROL_WORDS),
            config,
        })
    }

    /// As the program sees it.
    pub fn hot(&self) -> HotSet<'_> {
        HotSet {
            index: &self.index,
            pages: &self.pages,
            stripes: &self.stripes,
            control: &self.control,
        }
    }
}

/// Puts copies of all items where the program looks, one after the other; returns where each is.
pub fn fill(hot: &HotSet<'_>, items: &[Hot]) -> Vec<Place> {
    use std::sync::atomic::Ordering::Relaxed;
    hot.set_seed(SEED);
    hot.stripes.iter().for_each(|stripe| stripe.store(AT_REST.stripe, Relaxed));
    hot.flush().store(AT_REST.flush, Relaxed);
    let units_in_page = (PAGE_SIZE - keyway_xdp::copy::COPY_LEN_MAX) / UNIT_SIZE;
    let (mut page, mut unit) = (0, 0);
    let mut places = Vec::new();
    for item in items {
        let mut seen = AT_REST;
        match item.state {
            State::Changed => seen.stripe = 6 << 32 | 6,
            State::Changing => seen.stripe = 6 << 32 | 7,
            State::Flushed => seen.flush = 2 << 32 | 2,
            State::Current | State::Torn | State::Expired => {}
        }
        let copied = Item {
            key: &item.key,
            flags: item.flags,
            cas: item.cas,
            value: &item.value,
            expires_s: item.expires_s,
            flush_s: item.flush_s,
        };
        let copy = HotCopy::new(&copied, seen).unwrap_or_else(|| panic!("{item:?} has no copy"));
        let place = Place { page, unit };
        let hash = keyway_region::hash(SEED, &item.key);
        hot.write(place, &copy);
        assert!(hot.point(hash, place), "no slot for {item:?}");
        if item.state == State::Changing {
            hot.stripe(hash).store(seen.stripe, Relaxed);
        }
        if item.state == State::Torn {
            let word = &hot.pages[page * PAGE_SIZE / 8 + unit * UNIT_SIZE / 8];
            word.store(word.load(Relaxed) | 1, Relaxed);
        }
        places.push(place);
        unit += copy.size().div_ceil(UNIT_SIZE);
        if unit > units_in_page {
            (page, unit) = (page + 1, 0);
        }
    }
    places
}

/// What user space would answer to a payload; `None` if the program has no business answering it.
pub fn reference(items: &[Hot], payload: &[u8]) -> Option<Vec<u8>> {
    let Decoded::Request { consumed, request } = Decoder::new(Limits::default()).decode(payload) else {
        return None;
    };
    if consumed != payload.len() {
        return None;
    }
    // Of two items under one key the later one counts, as it does in the index.
    let find = |key: &[u8]| {
        items
            .iter()
            .rev()
            .find(|item| item.key == key && item.state == State::Current)
    };
    let mut out = Vec::new();
    match request {
        Request::Get { keys, with_cas } => {
            for key in keys {
                let item = find(key)?;
                reply::value(&mut out, key, item.flags, item.value.len(), with_cas.then_some(item.cas));
                out.extend_from_slice(&item.value);
                out.extend_from_slice(reply::LINE_END);
            }
            out.extend_from_slice(reply::END);
        }
        Request::Meta(Meta::Get(get)) => meta(&get, find(get.key.stored())?, &mut out)?,
        // The programs know no other: the rows of the others say so.
        _ => return None,
    }
    Some(out)
}

/// Whether an answer to any frame is the one that is due to what the frame says.
///
/// # Errors
///
/// What is wrong with it.
pub fn hold_answer(bytes: &[u8], answer: &[u8], items: &[Hot], v6: bool) -> Result<(), String> {
    let udp = if v6 { 54 } else { 34 };
    let udp_len = usize::from(u16::from_be_bytes([bytes[udp + 4], bytes[udp + 5]]));
    let datagram = bytes
        .get(udp + 8..udp + udp_len)
        .ok_or("it was answered, though it is longer than its frame")?;
    let address = |at: usize| {
        if v6 {
            <[u8; 16]>::try_from(&bytes[at..at + 16]).map(Into::into).ok()
        } else {
            <[u8; 4]>::try_from(&bytes[at..at + 4]).map(Into::into).ok()
        }
    };
    let (source, target) = if v6 {
        (address(22), address(38))
    } else {
        (address(26), address(30))
    };
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let frame = Frame {
        addresses: [source.ok_or("no source")?, target.ok_or("no target")?],
        ports: [port(udp), port(udp + 2)],
        datagram: datagram.to_vec(),
    };
    let field = &bytes[udp + 6..udp + 8];
    let sums = [Checksum::Full, Checksum::Partial, Checksum::Absent];
    let checksum = sums
        .into_iter()
        .find(|checksum| frame.bytes(*checksum)[udp + 6..udp + 8] == *field);
    let checksum = checksum.ok_or("it was answered, though its checksum is wrong")?;
    let got = frame.answered(answer, checksum)?;
    if reference(items, &datagram[8..]) != Some(got) {
        return Err("the answer is not user space's".into());
    }
    Ok(())
}

fn meta(get: &MetaGet<'_>, item: &Hot, out: &mut Vec<u8>) -> Option<()> {
    let changes = get.exptime.is_some() || get.vivify.is_some() || get.recache_s.is_some() || get.new_cas.is_some();
    if changes || get.no_bump || get.unless_cas.is_some() || get.key.is_binary() {
        return None;
    }
    let code = if get.value { MetaCode::Value } else { MetaCode::Done };
    let facts = ItemFacts {
        key: &item.key,
        value_len: item.value.len(),
        client_flags: item.flags,
        cas: item.cas,
        ttl_s: (item.expires_s != 0).then(|| u64::from(item.expires_s - NOW_S)),
        ..ItemFacts::default()
    };
    reply::meta(out, MetaCommand::Get, code, &get.flags, &facts);
    if get.value {
        out.extend_from_slice(&item.value);
        out.extend_from_slice(reply::LINE_END);
    }
    Some(())
}
