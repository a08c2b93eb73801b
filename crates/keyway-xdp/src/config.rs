//! What the program is told before it is loaded, and what it says of a packet: the words of `intf.h` and `env.h`.

use std::fmt;
use std::net::IpAddr;

use crate::hot::PAGE_SIZE;

/// Most networks that may ask (`KW_ALLOW_MAX`).
pub const ALLOW_MAX: usize = 16;
/// Bytes of copies for each index bucket: at eight slots a bucket, the index is hardly ever full before the pages are.
const BYTES_PER_BUCKET: usize = 1024;
/// Bytes of a bucket.
const BUCKET_SIZE: usize = 64;
/// Fewest pages: some are filled while others are emptied.
const PAGES_MIN: usize = 4;
/// Most memory: what the index's places can name is more.
const MEMORY_MAX: usize = 64 << 30;

/// What became of a packet (`enum kw_verdict`). Every one but a hit goes up as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// answered
    Hit,
    /// not to the address and port that are served; not counted
    NotOurs,
    /// IP options, a fragment, a length or checksum that does not agree, a VLAN tag, too long, not to this host's own link address, or several
    /// datagrams in one
    OddPacket,
    /// from a source that may not ask
    Forbidden,
    /// from a source that asks too often
    OverRate,
    /// the lease has run out
    Silent,
    /// a part of a request, or header bytes that are not 0
    OddFrame,
    /// no `get`, `gets` or `mg` as the program understands them
    OddRequest,
    /// a key without a hot copy
    Miss,
    /// a copy that a change has made void, or that is being written
    Stale,
    /// a copy whose time is over
    Expired,
    /// an answer of more than one datagram
    TooLong,
    /// the packet could not be made long enough
    NoRoom,
    /// from a source to which this host has sent nothing by this interface lately
    NoPath,
}

impl Verdict {
    /// All of them, in the order of the program's counters.
    pub const ALL: [Verdict; 14] = [
        Self::Hit,
        Self::NotOurs,
        Self::OddPacket,
        Self::Forbidden,
        Self::OverRate,
        Self::Silent,
        Self::OddFrame,
        Self::OddRequest,
        Self::Miss,
        Self::Stale,
        Self::Expired,
        Self::TooLong,
        Self::NoRoom,
        Self::NoPath,
    ];

    /// Its name in statistics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hit => "hits",
            Self::NotOurs => "not_ours",
            Self::OddPacket => "odd_packets",
            Self::Forbidden => "forbidden",
            Self::OverRate => "over_rate",
            Self::Silent => "silent",
            Self::OddFrame => "odd_frames",
            Self::OddRequest => "odd_requests",
            Self::Miss => "misses",
            Self::Stale => "stale",
            Self::Expired => "expired",
            Self::TooLong => "too_long",
            Self::NoRoom => "no_room",
            Self::NoPath => "no_path",
        }
    }

    pub(crate) fn from_number(number: i32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|number| Self::ALL.get(number).copied())
            .unwrap_or(Self::OddPacket)
    }
}

/// What the program is told before it is loaded.
#[derive(Clone, Debug)]
pub struct Settings {
    /// the address that is served: packets to others are not looked at
    pub address: IpAddr,
    /// the port that is served
    pub port: u16,
    /// networks that may ask, as address and prefix length; at most [`ALLOW_MAX`]
    pub allow: Vec<(IpAddr, u8)>,
    /// memory for copies and their index, bytes
    pub memory: usize,
    /// answers that a source gets in a second at most, and how many at once after a pause; `None`: as many as it likes
    pub rate: Option<(u32, u32)>,
}

/// `struct kw_config`
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Config {
    pub(crate) bucket_mask: u32,
    pub(crate) pages: u32,
    address4: [u8; 4],
    address6: [u8; 16],
    port: [u8; 2],
    allowed: u16,
    /// address and mask
    allow: [[[u8; 16]; 2]; ALLOW_MAX],
    answer_ns: u64,
    burst_ns: u64,
}

const _: () = assert!(size_of::<Config>() == 8 + 20 + 4 + ALLOW_MAX * 32 + 16);

/// The settings name more networks than the program can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyNetworks(pub usize);

impl Config {
    /// The program's form of `settings`.
    pub fn new(settings: &Settings) -> Result<Self, TooManyNetworks> {
        if settings.allow.len() > ALLOW_MAX {
            return Err(TooManyNetworks(settings.allow.len()));
        }
        let buckets = (settings.memory.min(MEMORY_MAX) / BYTES_PER_BUCKET)
            .max(64)
            .next_power_of_two();
        let pages = (settings.memory.min(MEMORY_MAX).saturating_sub(buckets * BUCKET_SIZE) / PAGE_SIZE).max(PAGES_MIN);
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let mut config = Self {
            bucket_mask: small(buckets - 1),
            pages: small(pages),
            address4: [0; 4],
            address6: [0; 16],
            port: settings.port.to_be_bytes(),
            allowed: u16::try_from(settings.allow.len()).unwrap_or(0),
            allow: [[[0; 16]; 2]; ALLOW_MAX],
            answer_ns: 0,
            burst_ns: 0,
        };
        match settings.address {
            IpAddr::V4(address) => config.address4 = address.octets(),
            IpAddr::V6(address) => config.address6 = address.octets(),
        }
        for (place, (address, prefix_len)) in config.allow.iter_mut().zip(&settings.allow) {
            *place = network(*address, *prefix_len);
        }
        if let Some((per_second, at_once)) = settings.rate {
            config.answer_ns = 1_000_000_000 / u64::from(per_second.max(1));
            config.burst_ns = config.answer_ns * u64::from(at_once.saturating_sub(1));
        }
        Ok(config)
    }

    pub(crate) fn bucket_mask(&self) -> usize {
        self.bucket_mask as usize
    }

    pub(crate) fn pages(&self) -> usize {
        self.pages as usize
    }

    pub(crate) fn address(&self) -> IpAddr {
        if self.address4 == [0; 4] {
            self.address6.into()
        } else {
            self.address4.into()
        }
    }

    /// Words that the hot set takes: index, pages.
    pub fn words(&self) -> (usize, usize) {
        ((self.bucket_mask() + 1) * 8, self.pages() * PAGE_SIZE / 8)
    }

    /// As it stands in the program's section.
    #[cfg(feature = "load")]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<Self>());
        bytes.extend(self.bucket_mask.to_ne_bytes());
        bytes.extend(self.pages.to_ne_bytes());
        bytes.extend(self.address4);
        bytes.extend(self.address6);
        bytes.extend(self.port);
        bytes.extend(self.allowed.to_ne_bytes());
        bytes.extend(self.allow.as_flattened().as_flattened());
        bytes.extend(self.answer_ns.to_ne_bytes());
        bytes.extend(self.burst_ns.to_ne_bytes());
        bytes
    }
}

/// Address and mask of a network, as IPv6: IPv4 addresses are ::ffff:a.b.c.d there.
fn network(address: IpAddr, prefix_len: u8) -> [[u8; 16]; 2] {
    let (address, prefix_len) = match address {
        IpAddr::V4(address) => (address.to_ipv6_mapped(), 96 + u32::from(prefix_len.min(32))),
        IpAddr::V6(address) => (address, u32::from(prefix_len.min(128))),
    };
    let mask = !u128::MAX.checked_shr(prefix_len).unwrap_or(0);
    [(address.to_bits() & mask).to_be_bytes(), mask.to_be_bytes()]
}

impl fmt::Display for TooManyNetworks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(count) = self;
        write!(
            f,
            "{count} networks are allowed, and the kernel door can hold {ALLOW_MAX}: combine some, or leave the kernel door off"
        )
    }
}

impl std::error::Error for TooManyNetworks {}
