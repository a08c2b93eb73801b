//! The program's configuration, and its verdicts on packets: the values of `intf.h` and `env.h`.

use std::fmt;
use std::net::IpAddr;

use crate::hot::PAGE_SIZE;

/// Most networks of allowed sources (`KW_ALLOW_MAX`).
pub const ALLOW_MAX: usize = 16;
/// Bytes of copies for each index bucket: with eight slots a bucket, the index is hardly ever full before the pages are.
const BYTES_PER_BUCKET: usize = 1024;
/// Size of a bucket, bytes.
const BUCKET_SIZE: usize = 64;
/// Fewest pages: some are filled while others are emptied.
const PAGES_MIN: usize = 4;
/// Most memory, bytes; the index can address more.
const MEMORY_MAX: usize = 64 << 30;

/// What the program did with a packet (`enum kw_verdict`). It passes up unchanged every packet but a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// answered
    Hit,
    /// not to the served address and port; not counted
    NotOurs,
    /// IP options, a fragment, a wrong length or checksum, a VLAN tag, too long, not to this host's own link address, or several
    /// datagrams in one
    OddPacket,
    /// from a source that is not allowed
    Forbidden,
    /// from a source above its rate
    OverRate,
    /// the lease has run out
    Silent,
    /// a part of a request, or header bytes that are not 0
    OddFrame,
    /// not a `get`, `gets` or `mg` that the program understands
    OddRequest,
    /// a key without a hot copy
    Miss,
    /// a copy that a change has made stale, or that is being written
    Stale,
    /// a copy that has expired
    Expired,
    /// an answer of more than one datagram
    TooLong,
    /// the packet could not be extended
    NoRoom,
    /// from a source to which this host has sent nothing through this interface lately
    NoPath,
    /// a key of a request on TCP that was answered
    TcpHit,
    /// an answer on TCP that was sent once more
    TcpRepeated,
    /// a TCP segment with nothing new to the server
    TcpReminded,
    /// a TCP segment that came while something else was on its way
    TcpBusy,
    /// a TCP segment whose numbers were translated, either way
    TcpTranslated,
}

impl Verdict {
    /// All of them, in the order of the program's counters.
    pub const ALL: [Verdict; 19] = [
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
        Self::TcpHit,
        Self::TcpRepeated,
        Self::TcpReminded,
        Self::TcpBusy,
        Self::TcpTranslated,
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
            Self::TcpHit => "tcp_hits",
            Self::TcpRepeated => "tcp_repeated",
            Self::TcpReminded => "tcp_reminded",
            Self::TcpBusy => "tcp_busy",
            Self::TcpTranslated => "tcp_translated",
        }
    }

    pub(crate) fn from_number(number: i32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|number| Self::ALL.get(number).copied())
            .unwrap_or(Self::OddPacket)
    }
}

/// The settings of the program.
#[derive(Clone, Debug)]
pub struct Settings {
    /// the served address: packets to other addresses are not examined
    pub address: IpAddr,
    /// the UDP port that is served, if one is
    pub udp_port: Option<u16>,
    /// the TCP port that is served, if one is
    pub tcp_port: Option<u16>,
    /// networks of allowed sources, as address and prefix length; at most [`ALLOW_MAX`]
    pub allow: Vec<(IpAddr, u8)>,
    /// memory for copies and their index, bytes
    pub memory: usize,
    /// answers per second that a source gets at most, and how many at once after a pause; `None`: no limit
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
    udp_port: [u8; 2],
    tcp_port: [u8; 2],
    allowed: u32,
    /// address and mask
    allow: [[[u8; 16]; 2]; ALLOW_MAX],
    unused: u32,
    answer_ns: u64,
    burst_ns: u64,
}

const _: () = assert!(size_of::<Config>() == 8 + 20 + 8 + ALLOW_MAX * 32 + 4 + 16);

/// The settings list more networks than the program can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyNetworks(pub usize);

impl Config {
    /// The configuration for `settings`.
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
            udp_port: settings.udp_port.unwrap_or(0).to_be_bytes(),
            tcp_port: settings.tcp_port.unwrap_or(0).to_be_bytes(),
            allowed: small(settings.allow.len()),
            allow: [[[0; 16]; 2]; ALLOW_MAX],
            unused: 0,
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

    /// Whether a UDP port is served, and whether a TCP port is.
    #[cfg(feature = "load")]
    pub(crate) fn serves(&self) -> (bool, bool) {
        (self.udp_port != [0; 2], self.tcp_port != [0; 2])
    }

    /// The served address of TCP in a configuration's bytes.
    #[cfg(feature = "load")]
    pub(crate) fn tcp_address(bytes: &[u8]) -> Option<std::net::SocketAddr> {
        let [address4, address6, port] = [8..12, 12..28, 30..32].map(|place| bytes.get(place));
        let (address4, address6) = (<[u8; 4]>::try_from(address4?).ok()?, <[u8; 16]>::try_from(address6?).ok()?);
        let port = u16::from_be_bytes(port?.try_into().ok()?);
        let address = if address4 == [0; 4] {
            IpAddr::from(address6)
        } else {
            address4.into()
        };
        Some(std::net::SocketAddr::new(address, port))
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

    /// Sizes of the hot set's index and pages, in words.
    pub fn words(&self) -> (usize, usize) {
        ((self.bucket_mask() + 1) * 8, self.pages() * PAGE_SIZE / 8)
    }

    /// Its bytes as in the program's section.
    #[cfg(feature = "load")]
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size_of::<Self>());
        bytes.extend(self.bucket_mask.to_ne_bytes());
        bytes.extend(self.pages.to_ne_bytes());
        bytes.extend(self.address4);
        bytes.extend(self.address6);
        bytes.extend(self.udp_port);
        bytes.extend(self.tcp_port);
        bytes.extend(self.allowed.to_ne_bytes());
        bytes.extend(self.allow.as_flattened().as_flattened());
        bytes.extend(self.unused.to_ne_bytes());
        bytes.extend(self.answer_ns.to_ne_bytes());
        bytes.extend(self.burst_ns.to_ne_bytes());
        bytes
    }
}

/// Address and mask of a network, as IPv6; an IPv4 address becomes ::ffff:a.b.c.d.
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
