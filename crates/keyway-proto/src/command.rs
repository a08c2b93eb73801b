//! Every command of the text protocol, and one table of its properties.
//!
//! The macro call `commands!` is the table. Its rows define the enum [`Command`] and the decoder's list of names ([`Command::named`]). They say
//! which commands may have a line of any length, which are answered before a login and over UDP, what a server's configuration must allow
//! for them, and which statistics and log lines each one changes (tests compare these with a server). After a row is added, every exhaustive
//! match of a [`Command`] is a compile error until it handles the new command; `CONTRIBUTING.md` has the steps.
//!
//! Nothing here parses arguments (`decode`) or knows what a command does to items.

/// The properties of a command, whatever its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// the word that a line begins with
    pub name: &'static [u8],
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

/// A row that most commands share: from memcached, about items, refused before a login, and answered over UDP.
const USUAL: Facts = Facts {
    name: b"",
    origin: Origin::Memcached,
    many_keys: None,
    before_login: BeforeLogin::Refused,
    over_udp: OverUdp::Answered,
    needs: Needs::Nothing,
    example: b"",
    counters: &[],
    watched: &[],
};

/// A row of commands about the server: refused over UDP, too.
const OF_THE_SERVER: Facts = Facts {
    over_udp: OverUdp::Refused,
    ..USUAL
};

/// Makes the enum and the look-ups from the table.
macro_rules! commands {
    ($($(#[$doc:meta])* $command:ident = $name:literal { $($field:ident: $value:expr,)* ..$rest:expr })*) => {
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
                    $(Self::$command => const { &Facts { name: $name, $($field: $value,)* ..$rest } },)*
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
        many_keys: Some(ManyKeys::Get),
        example: b"get example\r\n",
        counters: &["cmd_get", "get_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `set <key> <flags> <exptime> <bytes> [noreply]`
    Set = b"set" {
        before_login: BeforeLogin::LogsIn,
        example: b"set example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `mg <key> <flags>*`
    MetaGet = b"mg" {
        example: b"mg example v\r\n",
        counters: &["cmd_get", "cmd_meta", "get_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `ms <key> <datalen> <flags>*`
    MetaSet = b"ms" {
        example: b"ms example 1\r\n1\r\n",
        counters: &["cmd_meta", "cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `gets <key>*`
    Gets = b"gets" {
        many_keys: Some(ManyKeys::Gets),
        example: b"gets example\r\n",
        counters: &["cmd_get", "get_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `md <key> <flags>*`
    MetaDelete = b"md" {
        example: b"md example\r\n",
        counters: &["cmd_meta", "delete_hits"],
        watched: &["item_get", "deleted"],
        ..USUAL
    }
    /// `ma <key> <flags>*`
    MetaArithmetic = b"ma" {
        example: b"ma example\r\n",
        counters: &["cmd_meta", "incr_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `mn`
    MetaNoop = b"mn" {
        example: b"mn\r\n",
        counters: &["cmd_meta"],
        ..USUAL
    }
    /// `me <key> [b]`
    MetaDebug = b"me" {
        example: b"me example\r\n",
        counters: &["cmd_get", "cmd_meta", "get_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `add <key> <flags> <exptime> <bytes> [noreply]`
    Add = b"add" {
        example: b"add example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `replace <key> <flags> <exptime> <bytes> [noreply]`
    Replace = b"replace" {
        example: b"replace example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `append <key> <flags> <exptime> <bytes> [noreply]`
    Append = b"append" {
        example: b"append example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `prepend <key> <flags> <exptime> <bytes> [noreply]`
    Prepend = b"prepend" {
        example: b"prepend example 0 0 1\r\n1\r\n",
        counters: &["cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `cas <key> <flags> <exptime> <bytes> <cas unique> [noreply]`
    Cas = b"cas" {
        example: b"cas example 0 0 1 1\r\n1\r\n",
        counters: &["cas_badval", "cmd_set"],
        watched: &["item_get", "item_store"],
        ..USUAL
    }
    /// `delete <key> [noreply]`
    Delete = b"delete" {
        example: b"delete example\r\n",
        counters: &["delete_hits"],
        watched: &["item_get", "deleted"],
        ..USUAL
    }
    /// `incr <key> <value> [noreply]`
    Incr = b"incr" {
        example: b"incr example 1\r\n",
        counters: &["incr_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `decr <key> <value> [noreply]`
    Decr = b"decr" {
        example: b"decr example 1\r\n",
        counters: &["decr_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `touch <key> <exptime> [noreply]`
    Touch = b"touch" {
        example: b"touch example 0\r\n",
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `gat <exptime> <key>*`
    Gat = b"gat" {
        many_keys: Some(ManyKeys::Gat),
        example: b"gat 0 example\r\n",
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `gats <exptime> <key>*`
    Gats = b"gats" {
        many_keys: Some(ManyKeys::Gats),
        example: b"gats 0 example\r\n",
        counters: &["cmd_touch", "touch_hits"],
        watched: &["item_get"],
        ..USUAL
    }
    /// `version`
    Version = b"version" {
        example: b"version\r\n",
        ..USUAL
    }
    /// `quit`
    Quit = b"quit" {
        before_login: BeforeLogin::Ends,
        example: b"quit\r\n",
        ..USUAL
    }
    /// `stats [<argument>…]`
    Stats = b"stats" {
        over_udp: OverUdp::AnsweredBare,
        example: b"stats\r\n",
        ..USUAL
    }
    /// `watch <stream>*`
    Watch = b"watch" {
        needs: Needs::Watching,
        example: b"watch\r\n",
        ..OF_THE_SERVER
    }
    /// `flush_all [<delay>] [noreply]`
    FlushAll = b"flush_all" {
        needs: Needs::Flushing,
        example: b"flush_all\r\n",
        counters: &["cmd_flush"],
        ..OF_THE_SERVER
    }
    /// `verbosity <level> [noreply]`
    Verbosity = b"verbosity" {
        needs: Needs::Trust,
        example: b"verbosity 0\r\n",
        ..OF_THE_SERVER
    }
    /// `cache_memlimit <megabytes> [noreply]`
    CacheMemlimit = b"cache_memlimit" {
        example: b"cache_memlimit 64\r\n",
        ..OF_THE_SERVER
    }
    /// `shutdown [graceful]`
    Shutdown = b"shutdown" {
        needs: Needs::ShuttingDown,
        example: b"shutdown\r\n",
        ..OF_THE_SERVER
    }
    /// `refresh_certs [noreply]`
    RefreshCerts = b"refresh_certs" {
        example: b"refresh_certs\r\n",
        ..OF_THE_SERVER
    }
    /// `lru_crawler metadump|mgdump all|hash|<ids>`, and settings that are checked and change nothing
    LruCrawler = b"lru_crawler" {
        needs: Needs::Dumping,
        example: b"lru_crawler metadump all\r\n",
        ..OF_THE_SERVER
    }
    /// `slabs …`, which is checked and changes nothing
    Slabs = b"slabs" {
        example: b"slabs automove 0\r\n",
        ..OF_THE_SERVER
    }
    /// `lru …`, which is checked and changes nothing
    Lru = b"lru" {
        example: b"lru mode flat\r\n",
        ..OF_THE_SERVER
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
