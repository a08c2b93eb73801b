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

/// For: a reader, a writer of keys that the example's begins with, and a writer of other keys. What the example does to an item is read off
/// the statistics that it moves, which a test compares with a server, and not off the row's rights, which these refusals are to check.
pub fn refusals(command: Command) -> [Option<Refusal>; 3] {
    use Refusal::{NotForThisUser, OutsidePrefix, ReadOnly};
    const CHANGES: [&str; 6] = ["cas_badval", "cmd_set", "cmd_touch", "decr_hits", "delete_hits", "incr_hits"];
    let counters = command.facts().counters;
    match command {
        _ if counters.iter().any(|name| CHANGES.contains(name)) => [Some(ReadOnly), None, Some(OutsidePrefix)],
        // It may take the key's computation, which others then wait for.
        Command::LeaseGet => [Some(ReadOnly), None, Some(OutsidePrefix)],
        _ if counters.contains(&"cmd_get") => [None, None, Some(OutsidePrefix)],
        Command::MetaNoop | Command::Version | Command::Quit | Command::Stats => [None; 3],
        Command::Watch | Command::LruCrawler => [None, Some(NotForThisUser), Some(NotForThisUser)],
        _ => [Some(NotForThisUser); 3],
    }
}
