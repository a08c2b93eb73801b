//! What each command's example is refused for. Used by the tests of roles, and by those of a server with users.

use keyway_proto::Command;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// its user may only read
    ReadOnly,
    /// its user has only keys with another prefix
    OutsidePrefix,
    /// only users with full rights may
    NotForThisUser,
}

/// For: a reader, a writer of keys that the example's begins with, and a writer of other keys.
pub fn refusals(command: Command) -> [Option<Refusal>; 3] {
    use Refusal::{NotForThisUser, OutsidePrefix, ReadOnly};
    match command {
        Command::Get | Command::Gets | Command::MetaGet | Command::MetaDebug => [None, None, Some(OutsidePrefix)],
        Command::Set
        | Command::Add
        | Command::Replace
        | Command::Append
        | Command::Prepend
        | Command::Cas
        | Command::Delete
        | Command::Incr
        | Command::Decr
        | Command::Touch
        | Command::Gat
        | Command::Gats
        | Command::MetaSet
        | Command::MetaDelete
        | Command::MetaArithmetic => [Some(ReadOnly), None, Some(OutsidePrefix)],
        Command::MetaNoop | Command::Version | Command::Quit | Command::Stats => [None; 3],
        Command::Watch | Command::LruCrawler => [None, Some(NotForThisUser), Some(NotForThisUser)],
        Command::FlushAll
        | Command::Verbosity
        | Command::CacheMemlimit
        | Command::Shutdown
        | Command::RefreshCerts
        | Command::Slabs
        | Command::Lru => [Some(NotForThisUser); 3],
    }
}
