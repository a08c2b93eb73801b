//! Every command of the text protocol, and one table of its properties.
//!
//! The macro call `commands!` is the table. Its rows define the enum [`Command`] and the decoder's list of names ([`Command::named`]). They say
//! what a request is, for every door: its form, what its time is counted as, which rights it needs and what it may change, whether the kernel
//! door answers it, which commands may have a line of any length, which are answered before a login and over UDP, what a server's
//! configuration must allow for them, and which statistics and log lines each one changes (tests compare these with a server). A row without
//! its form, verb, access or example is a compile error, and so is a command that the decoder or the server does not handle;
//! `CONTRIBUTING.md` has the steps.
//!
//! Nothing here parses arguments (`decode`) or knows what a command does to items.

/// The properties of a command, whatever its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// the word that a line begins with
    pub name: &'static [u8],
    /// the family that it belongs to, which decides the look of its answers
    pub form: Form,
    /// as what its time is counted
    pub verb: Verb,
    /// the rights that it needs, from which follows what it may change
    pub access: Access,
    /// whether the kernel door's programs can answer it, so that its keys are worth a copy there
    pub by_kernel: bool,
    /// who defined the command; this decides where `docs/protocol.md` lists it
    pub origin: Origin,
    /// if its line may be of any length: which retrieval of many keys it is. Other lines have at most [`crate::LINE_LEN_MAX`] bytes
    pub many_keys: Option<ManyKeys>,
    /// what it does on a connection that has to log in first
    pub before_login: BeforeLogin,
    /// whether it is answered over UDP
    pub over_udp: OverUdp,
    /// the condition under which a server executes it
    pub needs: Needs,
    /// a complete request, data block included, whose key is [`EXAMPLE_KEY`]
    pub example: &'static [u8],
    /// the lines of `stats` that the example adds 1 to when an item under its key has the value `1`
    pub counters: &'static [&'static str],
    /// the kinds of log lines that the example then sends to watchers of fetchers, mutations and deletions, in order
    pub watched: &'static [&'static str],
}

/// The key of every [`Facts::example`].
pub const EXAMPLE_KEY: &str = "example";

/// The project that defined a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// memcached: its `doc/protocol.txt` describes it
    Memcached,
    /// Keyway
    Keyway,
}

/// The family of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// a line of memcached's first protocol
    Text,
    /// a meta command
    Meta,
    /// a packet of the binary protocol
    Binary,
}

/// As what the time of a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the kinds of requests")]
pub enum Verb {
    Get,
    Set,
    Delete,
    Arithmetic,
    Touch,
    /// about the server, or too rare to be counted by itself
    Other,
}

/// The rights that a request needs. A role that does not allow one by name refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// none: the answer shows no key, and numbers of the whole server at most
    Nothing,
    /// to read the items of its keys
    Reads,
    /// to change the items of its keys
    Writes,
    /// to read the item, or with some flags to change it ([`crate::Request::access`] tells)
    ByFlags,
    /// none, or one of the two below, by its argument ([`crate::Request::access`] tells)
    ByArgument,
    /// to read all keys: the answer shows keys, clients or settings
    Overview,
    /// to change the server, or all items
    Server,
}

/// The commands that take any number of keys, and are answered while their line arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the commands")]
pub enum ManyKeys {
    Get,
    Gets,
    Gat,
    Gats,
}

impl ManyKeys {
    /// Whether an exptime comes before the keys.
    pub(crate) const fn takes_exptime(self) -> bool {
        match self {
            Self::Get | Self::Gets => false,
            Self::Gat | Self::Gats => true,
        }
    }
}

/// What a command does on a connection that still has to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforeLogin {
    /// it is refused
    Refused,
    /// it carries the user and password
    LogsIn,
    /// it ends the connection
    Ends,
}

/// Whether a command is answered over UDP, where the sender's address can be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverUdp {
    /// yes
    Answered,
    /// only without arguments: with one, the answer shows other clients or is long
    AnsweredBare,
    /// no: it changes the server, or its answer does not end
    Refused,
}

/// The condition under which a server executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// nothing
    Nothing,
    /// the configuration does not turn `flush_all` off
    Flushing,
    /// the configuration does not turn dumps of keys off
    Dumping,
    /// the configuration does not turn `watch` off
    Watching,
    /// the configuration turns `shutdown` on
    ShuttingDown,
    /// the client is on the server's machine, or has logged in
    Trust,
}

impl Facts {
    /// The row of a request that is none of the commands: a step of SASL, and a packet that is refused.
    pub(crate) const NO_COMMAND: &'static Self = &Self::usual(b"", Form::Binary, Verb::Other, Access::Nothing, b"");

    /// What most commands have in common: they come from memcached, are refused before a login, and are answered over UDP unless they are
    /// about the server.
    const fn usual(name: &'static [u8], form: Form, verb: Verb, access: Access, example: &'static [u8]) -> Self {
        Self {
            name,
            form,
            verb,
            access,
            by_kernel: false,
            origin: Origin::Memcached,
            many_keys: None,
            before_login: BeforeLogin::Refused,
            over_udp: match access {
                Access::Overview | Access::Server => OverUdp::Refused,
                _ => OverUdp::Answered,
            },
            needs: Needs::Nothing,
            example,
            counters: &[],
            watched: &[],
        }
    }
}

/// Makes the enum and the look-ups from the table.
macro_rules! commands {
    ($(
        $(#[$doc:meta])*
        $command:ident = $name:literal {
            form: $form:ident,
            verb: $verb:ident,
            access: $access:ident,
            example: $example:literal,
            $($field:ident: $value:expr,)*
        }
    )*) => {
        /// A command of the text protocol, meta commands included.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Command {
            $($(#[$doc])* $command,)*
        }

        impl Command {
            /// All commands, in the table's order.
            pub const ALL: &'static [Self] = &[$(Self::$command),*];

            /// The command's row of the table.
            pub const fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$command => const {
                        &Facts {
                            $($field: $value,)*
                            ..Facts::usual($name, Form::$form, Verb::$verb, Access::$access, $example)
                        }
                    },)*
                }
            }

            /// The command with this name.
            #[inline(always)]
            pub fn named(word: &[u8]) -> Option<Self> {
                match word {
                    $($name => Some(Self::$command),)*
                    _ => None,
                }
            }
        }
    };
}

// The most frequent ones first: the decoder compares names in this order.
commands! {
    /// `get <key>*`
    Get = b"get" {
        form: Text,
        verb: Get,
        access: Reads,
        example: b"get example\r\n",
        by_kernel: true,
        many_keys: Some(ManyKeys::Get),
        counters: &["cmd_get", "get_hits"],
        watched: &["item_get"],
    }
    /// `set <key> <flags> <exptime> <bytes> [noreply]`
    Set = b"set" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"set example 0 0 1\r\n1\r\n",
        before_login: BeforeLogin::LogsIn,
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `mg <key> <flags>*`
    MetaGet = b"mg" {
        form: Meta,
        verb: Get,
        access: ByFlags,
        example: b"mg example v\r\n",
        by_kernel: true,
        counters: &["cmd_get", "cmd_meta", "get_hits"],
        watched: &["item_get"],
    }
    /// `ms <key> <datalen> <flags>*`
    MetaSet = b"ms" {
        form: Meta,
        verb: Set,
        access: Writes,
        example: b"ms example 1\r\n1\r\n",
        counters: &["cmd_meta", "cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `gets <key>*`
    Gets = b"gets" {
        form: Text,
        verb: Get,
        access: Reads,
        example: b"gets example\r\n",
        by_kernel: true,
        many_keys: Some(ManyKeys::Gets),
        counters: &["cmd_get", "get_hits"],
        watched: &["item_get"],
    }
    /// `md <key> <flags>*`
    MetaDelete = b"md" {
        form: Meta,
        verb: Delete,
        access: Writes,
        example: b"md example\r\n",
        counters: &["cmd_meta", "delete_hits"],
        watched: &["item_get", "deleted"],
    }
    /// `ma <key> <flags>*`
    MetaArithmetic = b"ma" {
        form: Meta,
        verb: Arithmetic,
        access: Writes,
        example: b"ma example\r\n",
        counters: &["cmd_meta", "incr_hits"],
        watched: &["item_get"],
    }
    /// `mn`
    MetaNoop = b"mn" {
        form: Meta,
        verb: Other,
        access: Nothing,
        example: b"mn\r\n",
        counters: &["cmd_meta"],
    }
    /// `me <key> [b]`
    MetaDebug = b"me" {
        form: Meta,
        verb: Other,
        access: Reads,
        example: b"me example\r\n",
        counters: &["cmd_get", "cmd_meta", "get_hits"],
        watched: &["item_get"],
    }
    /// `add <key> <flags> <exptime> <bytes> [noreply]`
    Add = b"add" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"add example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `replace <key> <flags> <exptime> <bytes> [noreply]`
    Replace = b"replace" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"replace example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `append <key> <flags> <exptime> <bytes> [noreply]`
    Append = b"append" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"append example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `prepend <key> <flags> <exptime> <bytes> [noreply]`
    Prepend = b"prepend" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"prepend example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `cas <key> <flags> <exptime> <bytes> <cas unique> [noreply]`
    Cas = b"cas" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"cas example 0 0 1 1\r\n1\r\n",
        counters: &["cas_badval", "cmd_set"],
        watched: &["item_get", "item_store"],
    }
    /// `delete <key> [noreply]`
    Delete = b"delete" {
        form: Text,
        verb: Delete,
        access: Writes,
        example: b"delete example\r\n",
        counters: &["delete_hits"],
        watched: &["item_get", "deleted"],
    }
    /// `incr <key> <value> [noreply]`
    Incr = b"incr" {
        form: Text,
        verb: Arithmetic,
        access: Writes,
        example: b"incr example 1\r\n",
        counters: &["incr_hits"],
        watched: &["item_get"],
    }
    /// `decr <key> <value> [noreply]`
    Decr = b"decr" {
        form: Text,
        verb: Arithmetic,
        access: Writes,
        example: b"decr example 1\r\n",
        counters: &["decr_hits"],
        watched: &["item_get"],
    }
    /// `touch <key> <exptime> [noreply]`
    Touch = b"touch" {
        form: Text,
        verb: Touch,
        access: Writes,
        example: b"touch example 0\r\n",
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
    }
    /// `gat <exptime> <key>*`
    Gat = b"gat" {
        form: Text,
        verb: Touch,
        access: Writes,
        example: b"gat 0 example\r\n",
        many_keys: Some(ManyKeys::Gat),
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
    }
    /// `gats <exptime> <key>*`
    Gats = b"gats" {
        form: Text,
        verb: Touch,
        access: Writes,
        example: b"gats 0 example\r\n",
        many_keys: Some(ManyKeys::Gats),
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
    }
    /// `lease-get <key> [<milliseconds>]` (mcrouter, `AsciiSerialized.cpp`, `McLeaseGetRequest`; the time is Keyway's)
    LeaseGet = b"lease-get" {
        form: Text,
        verb: Get,
        access: Writes,
        example: b"lease-get example\r\n",
        origin: Origin::Keyway,
        counters: &["cmd_get", "get_hits"],
        watched: &["item_get"],
    }
    /// `lease-set <key> <token> <flags> <exptime> <bytes> [noreply]` (mcrouter, `McLeaseSetRequest`)
    LeaseSet = b"lease-set" {
        form: Text,
        verb: Set,
        access: Writes,
        example: b"lease-set example 2 0 0 1\r\n1\r\n",
        origin: Origin::Keyway,
        counters: &["cmd_set"],
        watched: &["item_get"],
    }
    /// `version`
    Version = b"version" {
        form: Text,
        verb: Other,
        access: Nothing,
        example: b"version\r\n",
    }
    /// `quit`
    Quit = b"quit" {
        form: Text,
        verb: Other,
        access: Nothing,
        example: b"quit\r\n",
        before_login: BeforeLogin::Ends,
    }
    /// `stats [<argument>…]`
    Stats = b"stats" {
        form: Text,
        verb: Other,
        access: ByArgument,
        example: b"stats\r\n",
        over_udp: OverUdp::AnsweredBare,
    }
    /// `watch <stream>*`
    Watch = b"watch" {
        form: Text,
        verb: Other,
        access: Overview,
        example: b"watch\r\n",
        needs: Needs::Watching,
    }
    /// `flush_all [<delay>] [noreply]`
    FlushAll = b"flush_all" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"flush_all\r\n",
        needs: Needs::Flushing,
        counters: &["cmd_flush"],
    }
    /// `verbosity <level> [noreply]`
    Verbosity = b"verbosity" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"verbosity 0\r\n",
        needs: Needs::Trust,
    }
    /// `cache_memlimit <megabytes> [noreply]`
    CacheMemlimit = b"cache_memlimit" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"cache_memlimit 64\r\n",
    }
    /// `shutdown [graceful]`
    Shutdown = b"shutdown" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"shutdown\r\n",
        needs: Needs::ShuttingDown,
    }
    /// `refresh_certs [noreply]`
    RefreshCerts = b"refresh_certs" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"refresh_certs\r\n",
    }
    /// `lru_crawler metadump|mgdump all|hash|<ids>`, and settings that are checked and change nothing
    LruCrawler = b"lru_crawler" {
        form: Text,
        verb: Other,
        access: Overview,
        example: b"lru_crawler metadump all\r\n",
        needs: Needs::Dumping,
    }
    /// `slabs …`, which is checked and changes nothing
    Slabs = b"slabs" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"slabs automove 0\r\n",
    }
    /// `lru …`, which is checked and changes nothing
    Lru = b"lru" {
        form: Text,
        verb: Other,
        access: Server,
        example: b"lru mode flat\r\n",
    }
}

impl Command {
    /// The word that a line begins with.
    pub const fn name(self) -> &'static str {
        match std::str::from_utf8(self.facts().name) {
            Ok(name) => name,
            Err(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoded, Decoder, LINE_LEN_MAX, Limits};
    use std::collections::BTreeSet;

    /// The document whose lists the tests compare with the table.
    const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

    /// The lines of the document's section of this title.
    fn section(title: &str) -> impl Iterator<Item = &'static str> {
        let lines = DOCUMENT
            .lines()
            .skip_while(move |line| *line != format!("## {title}"))
            .skip(1);
        lines.take_while(|line| !line.starts_with("## "))
    }

    /// The texts between backquotes.
    fn quoted(text: &str) -> impl Iterator<Item = &str> {
        text.split('`').skip(1).step_by(2)
    }

    fn names(of: impl Fn(&Facts) -> bool) -> BTreeSet<&'static str> {
        let rows = Command::ALL.iter().filter(|command| of(command.facts()));
        rows.map(|command| command.name()).collect()
    }

    /// The command names that begin the quoted words of the first cells of a section's table: a row may list several commands, as in
    /// `get gets gat`, or one with its arguments.
    fn listed(title: &str) -> BTreeSet<&'static str> {
        let cells = section(title).filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let words = cells.flat_map(quoted).flat_map(|quoted| {
            let words = || quoted.split(' ');
            let are_names = words().all(|word| Command::named(word.as_bytes()).is_some());
            words().take(if are_names { usize::MAX } else { 1 })
        });
        words.collect()
    }

    #[test]
    fn each_example_decodes_to_its_command() {
        for &command in Command::ALL {
            let example = command.facts().example;
            let Decoded::Request { consumed, request } = Decoder::new(Limits::default()).decode(example) else {
                panic!("{command:?}: its example is no request");
            };
            assert_eq!((consumed, request.command()), (example.len(), Some(command)));
            let is_about_key = example.windows(EXAMPLE_KEY.len()).any(|part| part == EXAMPLE_KEY.as_bytes());
            assert!(is_about_key || command.facts().watched.is_empty(), "{command:?}");
        }
    }

    #[test]
    fn each_name_names_its_command_and_nothing_else_does() {
        assert_eq!(names(|_| true).len(), Command::ALL.len());
        for &command in Command::ALL {
            let name = command.facts().name;
            assert_eq!((Command::named(name), command.name().as_bytes()), (Some(command), name));
            assert_eq!(Command::named(&[name, b"x"].concat()), None);
            assert_eq!(Command::named(&name.to_ascii_uppercase()), None);
        }
        assert_eq!(Command::named(b""), None);
    }

    #[test]
    fn lines_of_many_keys_are_those_of_the_table() {
        for &command in Command::ALL {
            let name = command.facts().name;
            let line = [name, b" 0", &b" key".repeat(LINE_LEN_MAX), b"\r\n"].concat();
            let closes = matches!(
                Decoder::new(Limits::default()).decode(&line),
                Decoded::Refused { close: true, .. }
            );
            assert_eq!(closes, command.facts().many_keys.is_none(), "{command:?}");
        }
    }

    #[test]
    fn the_document_lists_every_command_in_its_section() {
        assert_eq!(listed("Commands"), names(|facts| facts.origin == Origin::Memcached));
        assert_eq!(listed("Keyway's own commands"), names(|facts| facts.origin == Origin::Keyway));
    }

    #[test]
    fn the_document_lists_what_udp_refuses() {
        let row = section("UDP").find(|line| line.contains("not over UDP"));
        let cell = row.and_then(|line| line.strip_prefix("| ")?.split(" | ").next());
        let (allowed, refused) = cell
            .and_then(|cell| cell.split_once(": "))
            .expect("the row of what needs a connection");
        let refused: BTreeSet<_> = quoted(refused).collect();
        let bare: BTreeSet<_> = quoted(allowed).filter(|name| refused.contains(name)).collect();
        assert_eq!(bare, names(|facts| facts.over_udp == OverUdp::AnsweredBare));
        assert_eq!(refused, names(|facts| facts.over_udp != OverUdp::Answered));
    }
}
