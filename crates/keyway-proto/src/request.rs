//! What a client can ask for: one variant per command or per group of similar commands, with its arguments parsed and their syntax checked.
//!
//! Norm: memcached's `doc/protocol.txt`. All slices borrow from the bytes given to the decoder. [`Command::facts`] has the properties of a
//! command that do not depend on its arguments.

use crate::binary;
use crate::command::{Access, Command, Facts, Form};
use crate::token::Tokens;

/// Longest key, in bytes (protocol.txt, "Keys").
pub const KEY_LEN_MAX: usize = 250;
/// Longest opaque token, in bytes, its flag letter included: memcached counts the norm's 32 bytes this way
/// (protocol.txt, "Meta Get", flag O).
pub const OPAQUE_LEN_MAX: usize = 32;
/// Most words in a meta command line, command and key included, as in memcached.
pub const META_TOKENS_MAX: usize = 20;

/// One complete request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the argument of that name in protocol.txt")]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives on the stack while it is executed, and decoding does not allocate"
)]
pub enum Request<'a> {
    /// `get <key>*` and `gets <key>*`
    Get {
        keys: Keys<'a>,
        with_cas: bool,
    },
    /// `gat <exptime> <key>*` and `gats <exptime> <key>*`
    GetAndTouch {
        exptime: i32,
        keys: Keys<'a>,
        with_cas: bool,
    },
    /// `lease-get <key> [<milliseconds>]`
    LeaseGet {
        key: &'a [u8],
        /// the client waits so long for another one's value, and keeps the lease as long as its connection
        wait_ms: Option<u32>,
    },
    /// `set add replace append prepend cas lease-set`
    Store(Store<'a>),
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    /// `incr`, `decr`
    Arithmetic {
        key: &'a [u8],
        delta: u64,
        decrement: bool,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i32,
        noreply: bool,
    },
    /// a meta command
    Meta(Meta<'a>),
    /// about the server rather than about items
    Admin(Admin<'a>),
    /// anything in the binary protocol
    Binary(binary::Packet<'a>),
}

/// A meta command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the commands")]
pub enum Meta<'a> {
    Get(MetaGet<'a>),
    Set(MetaSet<'a>),
    Delete(MetaDelete<'a>),
    Arithmetic(MetaArithmetic<'a>),
    /// `mn`
    Noop,
    /// `me <key> [b]`
    Debug {
        key: MetaKey<'a>,
    },
}

/// A request about the server rather than about items.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is the argument of that name in protocol.txt")]
pub enum Admin<'a> {
    /// `flush_all [delay] [noreply]`
    FlushAll {
        delay: i32,
        noreply: bool,
    },
    Version,
    /// `verbosity <level> [noreply]`
    Verbosity {
        level: u32,
        noreply: bool,
    },
    Quit,
    /// `stats [<argument>…]`; the text after `stats`, without surrounding spaces, empty if there is none
    Stats {
        argument: &'a [u8],
    },
    /// `cache_memlimit <megabytes> [noreply]`
    CacheMemlimit {
        megabytes: u64,
        noreply: bool,
    },
    /// `shutdown [graceful]`
    Shutdown {
        graceful: bool,
    },
    /// `lru_crawler metadump all|hash|<ids>` and `lru_crawler mgdump …`; what to walk is in `what`
    Dump {
        format: DumpFormat,
        what: &'a [u8],
    },
    /// `watch <fetchers|mutations|evictions|connevents|deletions|…>*`: what follows `watch`
    Watch {
        what: &'a [u8],
    },
    /// `refresh_certs [noreply]`: load the TLS certificates again
    RefreshCerts {
        noreply: bool,
    },
    /// A command about slabs or LRU internals that Keyway does not have: it is answered with this fixed line and has no effect
    Obsolete {
        command: Command,
        reply: &'static [u8],
        noreply: bool,
    },
}

/// What executing a request may do to items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// nothing
    Reads,
    /// it reads; with some flags it also changes an item
    MayChange,
    /// it changes items or the server
    Changes,
}

impl Request<'_> {
    /// Its command. `None`: a packet of SASL, or one that is refused.
    #[inline]
    pub const fn command(&self) -> Option<Command> {
        Some(match self {
            Self::Get { with_cas: false, .. } => Command::Get,
            Self::Get { with_cas: true, .. } => Command::Gets,
            Self::GetAndTouch { with_cas: false, .. } => Command::Gat,
            Self::GetAndTouch { with_cas: true, .. } => Command::Gats,
            Self::LeaseGet { .. } => Command::LeaseGet,
            Self::Store(store) => store.verb.command(),
            Self::Delete { .. } => Command::Delete,
            Self::Arithmetic { decrement: false, .. } => Command::Incr,
            Self::Arithmetic { decrement: true, .. } => Command::Decr,
            Self::Touch { .. } => Command::Touch,
            Self::Meta(meta) => meta.command(),
            Self::Admin(admin) => admin.command(),
            Self::Binary(packet) => return packet.operation.in_text(),
        })
    }

    /// The row of its command.
    #[inline]
    pub const fn facts(&self) -> &'static Facts {
        match self.command() {
            Some(command) => command.facts(),
            None => Facts::NO_COMMAND,
        }
    }

    /// The family that it belongs to: a packet is binary, whatever its command.
    pub const fn form(&self) -> Form {
        match self {
            Self::Binary(_) => Form::Binary,
            _ => self.facts().form,
        }
    }

    /// What executing it may do.
    pub const fn effect(&self) -> Effect {
        self.facts().access.effect()
    }

    /// Whether the kernel door's programs can answer it: they know no packets.
    pub const fn is_for_kernel(&self) -> bool {
        self.facts().by_kernel && !matches!(self, Self::Binary(_))
    }

    /// The rights that it needs; its row's, unless flags or an argument decide. Never [`Access::ByFlags`] or [`Access::ByArgument`].
    pub fn access(&self) -> Access {
        match self {
            // `N` makes an item, `T` changes its exptime, and `R` marks it as being fetched again.
            Self::Meta(Meta::Get(get)) if get.vivify.is_some() || get.exptime.is_some() || get.recache_s.is_some() => {
                Access::Writes
            }
            Self::Meta(Meta::Get(_)) => Access::Reads,
            Self::Admin(Admin::Stats { argument })
            | Self::Binary(binary::Packet {
                operation: binary::Operation::Stat { argument },
                ..
            }) => access_of_stats(argument),
            // Settings: they are checked as if they changed something.
            Self::Admin(Admin::Obsolete { .. }) => Access::Server,
            _ => self.facts().access,
        }
    }

    /// Its keys, as stored.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let (many, one) = match self {
            Self::Get { keys, .. } | Self::GetAndTouch { keys, .. } => (Some(keys.clone()), None),
            Self::LeaseGet { key, .. }
            | Self::Store(Store { key, .. })
            | Self::Delete { key, .. }
            | Self::Arithmetic { key, .. }
            | Self::Touch { key, .. } => (None, Some(*key)),
            Self::Meta(meta) => (None, meta.key().map(MetaKey::stored)),
            Self::Admin(_) => (None, None),
            Self::Binary(packet) => (None, packet.operation.key()),
        };
        many.into_iter().flatten().chain(one)
    }

    /// Whether it is all of its line, or the last piece.
    pub fn is_last(&self) -> bool {
        match self {
            Self::Get { keys, .. } | Self::GetAndTouch { keys, .. } => keys.are_last(),
            _ => true,
        }
    }

    /// Whether the client asks for no answer at all (`noreply`).
    pub const fn is_silent(&self) -> bool {
        match self {
            Self::Store(Store { noreply, .. })
            | Self::Delete { noreply, .. }
            | Self::Arithmetic { noreply, .. }
            | Self::Touch { noreply, .. } => *noreply,
            Self::Admin(admin) => admin.is_silent(),
            Self::Get { .. } | Self::GetAndTouch { .. } | Self::LeaseGet { .. } | Self::Meta(_) | Self::Binary(_) => false,
        }
    }
}

impl Access {
    /// What a request with these rights may do to items.
    pub const fn effect(self) -> Effect {
        match self {
            Self::Nothing | Self::Reads | Self::ByArgument | Self::Overview => Effect::Reads,
            Self::ByFlags => Effect::MayChange,
            Self::Writes | Self::Server => Effect::Changes,
        }
    }
}

/// `stats` alone has numbers. Its arguments show keys, clients and settings; `reset`, and `detail` other than `dump`, change the server.
fn access_of_stats(argument: &[u8]) -> Access {
    let mut words = Tokens(argument);
    match (words.next(), words.next()) {
        (None, _) => Access::Nothing,
        // The binary protocol compares only the beginning.
        (Some(word), _) if word.starts_with(b"reset") => Access::Server,
        (Some(b"detail"), Some(b"dump")) => Access::Overview,
        (Some(b"detail"), _) => Access::Server,
        (Some(_), _) => Access::Overview,
    }
}

impl Meta<'_> {
    /// Its command.
    pub const fn command(&self) -> Command {
        match self {
            Self::Get(_) => Command::MetaGet,
            Self::Set(_) => Command::MetaSet,
            Self::Delete(_) => Command::MetaDelete,
            Self::Arithmetic(_) => Command::MetaArithmetic,
            Self::Noop => Command::MetaNoop,
            Self::Debug { .. } => Command::MetaDebug,
        }
    }

    fn key(&self) -> Option<&MetaKey<'_>> {
        match self {
            Self::Get(MetaGet { key, .. })
            | Self::Set(MetaSet { key, .. })
            | Self::Delete(MetaDelete { key, .. })
            | Self::Arithmetic(MetaArithmetic { key, .. })
            | Self::Debug { key } => Some(key),
            Self::Noop => None,
        }
    }
}

impl Admin<'_> {
    /// Its command.
    pub const fn command(&self) -> Command {
        match self {
            Self::FlushAll { .. } => Command::FlushAll,
            Self::Version => Command::Version,
            Self::Verbosity { .. } => Command::Verbosity,
            Self::Quit => Command::Quit,
            Self::Stats { .. } => Command::Stats,
            Self::CacheMemlimit { .. } => Command::CacheMemlimit,
            Self::Shutdown { .. } => Command::Shutdown,
            Self::Dump { .. } => Command::LruCrawler,
            Self::Watch { .. } => Command::Watch,
            Self::RefreshCerts { .. } => Command::RefreshCerts,
            Self::Obsolete { command, .. } => *command,
        }
    }

    /// Whether the client asks for no answer (`noreply`).
    pub const fn is_silent(&self) -> bool {
        match self {
            Self::FlushAll { noreply, .. }
            | Self::Verbosity { noreply, .. }
            | Self::CacheMemlimit { noreply, .. }
            | Self::RefreshCerts { noreply }
            | Self::Obsolete { noreply, .. } => *noreply,
            Self::Version | Self::Quit | Self::Stats { .. } | Self::Shutdown { .. } | Self::Dump { .. } | Self::Watch { .. } => {
                false
            }
        }
    }
}

/// The keys of a request with many keys, in the order sent; their lengths have been checked. A long line is decoded in pieces, each a
/// request of its own; the last one may have no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys<'a> {
    pub(crate) words: Tokens<'a>,
    pub(crate) is_last: bool,
}

impl Keys<'_> {
    /// Whether the line ends with these keys, so that the answer ends with them.
    pub fn are_last(&self) -> bool {
        self.is_last
    }
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.words.next()
    }
}

/// A classic storage command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store<'a> {
    /// which of the six commands
    pub verb: StoreVerb,
    /// its key
    pub key: &'a [u8],
    /// client flags
    pub flags: u32,
    /// protocol.txt, "Expiration times"
    pub exptime: i32,
    /// the token of `cas`; 0 otherwise
    pub cas: u64,
    /// send nothing on success
    pub noreply: bool,
    /// the data block, without its line end
    pub value: &'a [u8],
}

/// The classic storage commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the commands")]
pub enum StoreVerb {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    /// `lease-set`: its token is in [`Store::cas`]
    Lease,
}

impl StoreVerb {
    /// The [`Command`] of this name.
    pub const fn command(self) -> Command {
        match self {
            Self::Set => Command::Set,
            Self::Add => Command::Add,
            Self::Replace => Command::Replace,
            Self::Append => Command::Append,
            Self::Prepend => Command::Prepend,
            Self::Cas => Command::Cas,
            Self::Lease => Command::LeaseSet,
        }
    }
}

/// The two dump formats of `lru_crawler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the sub-commands")]
pub enum DumpFormat {
    Metadump,
    Mgdump,
}

/// The key of a meta command: as sent, and as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaKey<'a> {
    /// the token as the client sent it, for flag `k`
    pub sent: &'a [u8],
    /// decoded bytes when flag `b` was given
    decoded: Option<Decoded64>,
}

/// A key decoded from base64.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Decoded64 {
    pub(crate) bytes: [u8; KEY_LEN_MAX],
    pub(crate) len: u8,
}

impl std::fmt::Debug for Decoded64 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl Decoded64 {
    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or(&self.bytes)
    }
}

impl<'a> MetaKey<'a> {
    pub(crate) fn new(sent: &'a [u8], decoded: Option<Decoded64>) -> Self {
        Self { sent, decoded }
    }

    /// The key that the item is stored under.
    pub fn stored(&self) -> &[u8] {
        match &self.decoded {
            Some(d) => d.as_slice(),
            None => self.sent,
        }
    }

    /// Whether the key is a binary one, sent in base64 (flag `b`).
    pub fn is_binary(&self) -> bool {
        self.decoded.is_some()
    }
}

/// The flags of a meta command in the order in which they were sent: an iterator over the request's flag tokens, with their
/// letters, that skips `P` and `L`. The reply writers use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flags<'a>(pub(crate) Tokens<'a>);

impl<'a> Iterator for Flags<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        //= protocol.txt, "Meta Commands": tokens P and L are completely ignored
        self.0.find(|token| !matches!(token, [b'P' | b'L', ..]))
    }
}

/// `mg <key> <flags>*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaGet<'a> {
    /// its key
    pub key: MetaKey<'a>,
    /// all flags as sent, for the reply
    pub flags: Flags<'a>,
    /// `v`
    pub value: bool,
    /// `q`
    pub quiet: bool,
    /// `u`: do not bump
    pub no_bump: bool,
    /// `C`: leave the value out if the item's CAS equals this
    pub unless_cas: Option<u64>,
    /// `E`: CAS of the item if it is modified
    pub new_cas: Option<u64>,
    /// `N`: exptime of the stub that a miss creates
    pub vivify: Option<i32>,
    /// `R`: win for recache below this many seconds of TTL
    pub recache_s: Option<i32>,
    /// `T`: new exptime
    pub exptime: Option<i32>,
}

impl MetaGet<'_> {
    /// Whether the reply to a hit carries the value, given the CAS of the item (protocol.txt, "Meta Get", flags v and C).
    pub fn wants_value(&self, item_cas: u64) -> bool {
        self.value && self.unless_cas != Some(item_cas)
    }
}

/// `ms <key> <datalen> <flags>*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaSet<'a> {
    /// its key
    pub key: MetaKey<'a>,
    /// all flags as sent, for the reply
    pub flags: Flags<'a>,
    /// `M`
    pub mode: MetaSetMode,
    /// `q`
    pub quiet: bool,
    /// `F`
    pub client_flags: u32,
    /// `T`
    pub exptime: i32,
    /// `C`
    pub compare_cas: Option<u64>,
    /// `E`
    pub new_cas: Option<u64>,
    /// `I`
    pub invalidate: bool,
    /// `N`: exptime of the item that an append or prepend creates on a miss
    pub vivify: Option<i32>,
    /// the data block, without its line end
    pub value: &'a [u8],
}

/// The modes of `ms` (flag `M`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "protocol.txt, \"Meta Set\", M")]
pub enum MetaSetMode {
    Add,
    Append,
    Prepend,
    Replace,
    #[default]
    Set,
}

/// `md <key> <flags>*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaDelete<'a> {
    /// its key
    pub key: MetaKey<'a>,
    /// all flags as sent, for the reply
    pub flags: Flags<'a>,
    /// `q`
    pub quiet: bool,
    /// `C`
    pub compare_cas: Option<u64>,
    /// `E`
    pub new_cas: Option<u64>,
    /// `I`: mark as stale instead of deleting
    pub invalidate: bool,
    /// `T`, with `I`
    pub exptime: Option<i32>,
    /// `x`: remove the value, keep the item
    pub remove_value: bool,
}

/// `ma <key> <flags>*`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaArithmetic<'a> {
    /// its key
    pub key: MetaKey<'a>,
    /// all flags as sent, for the reply
    pub flags: Flags<'a>,
    /// `q`
    pub quiet: bool,
    /// `v`
    pub value: bool,
    /// `M`: `D` or `-`
    pub decrement: bool,
    /// `D`
    pub delta: u64,
    /// `J`
    pub initial: u64,
    /// `N`: exptime of the item that a miss creates
    pub vivify: Option<i32>,
    /// `T`
    pub exptime: Option<i32>,
    /// `C`
    pub compare_cas: Option<u64>,
    /// `E`
    pub new_cas: Option<u64>,
}
