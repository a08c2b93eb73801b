//! Answers to the meta commands: which lines are hidden, which flags are echoed, and their arguments.

use super::{LINE_END, decimal};
use crate::base64;
use crate::request::Flags;
use crate::token::splits_lines;

/// The meta commands whose answers echo flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCommand {
    /// `mg`
    Get,
    /// `ms`
    Set,
    /// `md`
    Delete,
    /// `ma`
    Arithmetic,
}

/// The codes that a meta answer begins with (protocol.txt, "Meta Get" up to "Meta Arithmetic").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaCode {
    /// `VA <size>`: a data block of [`ItemFacts::value_len`] bytes and [`LINE_END`] follow
    Value,
    /// `HD`: done, or a hit without value
    Done,
    /// `EN`: a miss of `mg`
    Miss,
    /// `NF`: a miss of the other commands
    NotFound,
    /// `NS`: the condition of the mode does not hold
    NotStored,
    /// `EX`: the CAS does not match
    Exists,
}

/// What an answer may show of an item. Every field is read only if a flag asks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemFacts<'a> {
    /// the key as stored, for `k`
    pub key: &'a [u8],
    /// whether the key is echoed in base64, with `b` after it
    pub is_binary: bool,
    /// length of the value after the command, for `VA` and for `s`. When `ms` does not store, the length that was
    /// sent
    pub value_len: usize,
    /// for `f`
    pub client_flags: u32,
    /// for `c`: the CAS after the command. `ms` answers 0 when it did not store
    pub cas: u64,
    /// for `t`: seconds left after the command, `None` for an item that does not expire
    pub ttl_s: Option<u64>,
    /// the argument of `t` if `t` comes before a `T` or `N` that changed the TTL: flags take effect from left to right
    pub ttl_before_s: Option<Option<u64>>,
    /// for `l`: seconds since the last access before this one
    pub idle_s: u64,
    /// for `h`: whether it was fetched before this command
    pub fetched: bool,
    /// `Z`: another client has won before. An answer never has both `W` and `Z`
    pub win_sent: bool,
    /// `X`: the item is marked stale
    pub stale: bool,
    /// `W`: this client has won
    pub win: bool,
}

/// Whether the flag `q` hides this answer (protocol.txt, flag `q` of each command), as it does for the usual one. It never hides errors.
pub fn is_hidden(command: MetaCommand, code: MetaCode) -> bool {
    match command {
        MetaCommand::Get => code == MetaCode::Miss,
        MetaCommand::Set | MetaCommand::Delete => code == MetaCode::Done,
        MetaCommand::Arithmetic => matches!(code, MetaCode::Done | MetaCode::Value),
    }
}

/// Appends the line of an answer: `VA <len> <flags>`, `HD <flags>` and so on, flags in the order in which they were sent.
///
/// It ignores `q`: call [`is_hidden`] first. After [`MetaCode::Value`] the caller appends value and [`LINE_END`].
pub fn meta(out: &mut Vec<u8>, command: MetaCommand, code: MetaCode, flags: &Flags<'_>, facts: &ItemFacts<'_>) {
    out.extend_from_slice(match code {
        MetaCode::Value => b"VA ",
        MetaCode::Done => b"HD",
        MetaCode::Miss => b"EN",
        MetaCode::NotFound => b"NF",
        MetaCode::NotStored => b"NS",
        MetaCode::Exists => b"EX",
    });
    if code == MetaCode::Value {
        decimal(out, facts.value_len as u64);
    }
    let has_item = matches!(code, MetaCode::Value | MetaCode::Done);
    let ttl_s = facts.ttl_before_s.unwrap_or(facts.ttl_s);
    for flag in flags.clone() {
        match (flag, command) {
            // Every answer has these two, so that a client knows which request it belongs to.
            ([b'O', ..], _) => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            ([b'k', ..], _) => key(out, facts),
            // `ms` answers these two whether it stored or not.
            ([b'c', ..], MetaCommand::Set) => labelled(out, b" c", facts.cas),
            ([b's', ..], MetaCommand::Set) => labelled(out, b" s", facts.value_len as u64),
            _ if !has_item => {}
            ([b'c', ..], MetaCommand::Get | MetaCommand::Arithmetic) => labelled(out, b" c", facts.cas),
            ([b't', ..], MetaCommand::Get | MetaCommand::Arithmetic) => match ttl_s {
                Some(ttl_s) => labelled(out, b" t", ttl_s),
                None => out.extend_from_slice(b" t-1"),
            },
            ([b's', ..], MetaCommand::Get) => labelled(out, b" s", facts.value_len as u64),
            ([b'f', ..], MetaCommand::Get) => labelled(out, b" f", facts.client_flags.into()),
            ([b'l', ..], MetaCommand::Get) => labelled(out, b" l", facts.idle_s),
            ([b'h', ..], MetaCommand::Get) => labelled(out, b" h", facts.fetched.into()),
            _ => {}
        }
    }
    if command == MetaCommand::Get && has_item {
        // Flags that the server adds: in this order, after those of the request.
        for (is_set, flag) in [(facts.win_sent, b" Z"), (facts.stale, b" X"), (facts.win, b" W")] {
            if is_set {
                out.extend_from_slice(flag);
            }
        }
    }
    out.extend_from_slice(LINE_END);
}

fn labelled(out: &mut Vec<u8>, label: &[u8; 2], number: u64) {
    out.extend_from_slice(label);
    decimal(out, number);
}

/// protocol.txt, "Meta Get", flag `b`: a key in base64 is followed by `b`. So is a key from another protocol that would split the line.
fn key(out: &mut Vec<u8>, facts: &ItemFacts<'_>) {
    out.extend_from_slice(b" k");
    if facts.is_binary || splits_lines(facts.key) {
        base64::encode(out, facts.key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(facts.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::tokens;

    const EVERY_FLAG: &[u8] = b"Popaque Oabc v k s c t f l h b q T30 N0 R5 Lx u C1 E2";

    fn facts() -> ItemFacts<'static> {
        ItemFacts {
            key: b"foo",
            value_len: 5,
            client_flags: 7,
            cas: 99,
            ttl_s: Some(30),
            idle_s: 4,
            fetched: true,
            ..ItemFacts::default()
        }
    }

    fn line(command: MetaCommand, code: MetaCode, flags: &[u8], facts: &ItemFacts<'_>) -> String {
        let mut out = Vec::new();
        meta(&mut out, command, code, &Flags(tokens(flags)), facts);
        String::from_utf8(out).unwrap_or_default()
    }

    #[test]
    fn each_command_echoes_its_own_flags_in_the_order_sent() {
        use {MetaCode::*, MetaCommand::*};
        for (command, code, expected) in [
            (Get, Value, "VA 5 Oabc kfoo s5 c99 t30 f7 l4 h1\r\n"),
            (Get, Done, "HD Oabc kfoo s5 c99 t30 f7 l4 h1\r\n"),
            (Get, Miss, "EN Oabc kfoo\r\n"),
            (Set, Done, "HD Oabc kfoo s5 c99\r\n"),
            (Set, NotStored, "NS Oabc kfoo s5 c99\r\n"),
            (Set, Exists, "EX Oabc kfoo s5 c99\r\n"),
            (Set, NotFound, "NF Oabc kfoo s5 c99\r\n"),
            (Delete, Done, "HD Oabc kfoo\r\n"),
            (Delete, NotFound, "NF Oabc kfoo\r\n"),
            (Delete, Exists, "EX Oabc kfoo\r\n"),
            (Arithmetic, Value, "VA 5 Oabc kfoo c99 t30\r\n"),
            (Arithmetic, Done, "HD Oabc kfoo c99 t30\r\n"),
            (Arithmetic, NotFound, "NF Oabc kfoo\r\n"),
            (Arithmetic, Exists, "EX Oabc kfoo\r\n"),
            (Arithmetic, NotStored, "NS Oabc kfoo\r\n"),
        ] {
            assert_eq!(line(command, code, EVERY_FLAG, &facts()), expected, "{command:?}");
        }
    }

    #[test]
    fn unlimited_items_binary_keys_and_the_extra_flags() {
        let facts = ItemFacts {
            is_binary: true,
            ttl_s: None,
            win_sent: true,
            stale: true,
            win: true,
            ..facts()
        };
        assert_eq!(
            line(MetaCommand::Get, MetaCode::Done, b"t k O1", &facts),
            "HD t-1 kZm9v b O1 Z X W\r\n"
        );
        assert_eq!(line(MetaCommand::Get, MetaCode::Miss, b"t k O1", &facts), "EN kZm9v b O1\r\n");
        assert_eq!(line(MetaCommand::Set, MetaCode::Done, b"", &facts), "HD\r\n");
    }

    #[test]
    fn a_key_that_would_split_the_line_is_sent_in_base64() {
        for (key, told) in [
            (b"a\r\nb".as_slice(), "HD kYQ0KYg== b\r\n"),
            (b"a b", "HD kYSBi b\r\n"),
            (b"a\nb", "HD kYQpi b\r\n"),
            (b"a\tb", "HD ka\tb\r\n"),
        ] {
            let facts = ItemFacts { key, ..facts() };
            for command in [
                MetaCommand::Get,
                MetaCommand::Set,
                MetaCommand::Delete,
                MetaCommand::Arithmetic,
            ] {
                assert_eq!(line(command, MetaCode::Done, b"k", &facts), told);
            }
        }
    }

    #[test]
    fn ttl_is_that_of_before_where_the_request_says_so() {
        let facts = ItemFacts {
            ttl_s: Some(60),
            ttl_before_s: Some(None),
            ..facts()
        };
        assert_eq!(line(MetaCommand::Get, MetaCode::Done, b"t T60", &facts), "HD t-1\r\n");
        let unchanged = ItemFacts {
            ttl_before_s: None,
            ..facts
        };
        assert_eq!(line(MetaCommand::Get, MetaCode::Done, b"t T60", &unchanged), "HD t60\r\n");
    }

    #[test]
    fn quiet_mode_hides_the_nominal_answer_only() {
        use {MetaCode::*, MetaCommand::*};
        let hidden = |command| [Value, Done, Miss, NotFound, NotStored, Exists].map(|code| is_hidden(command, code));
        assert_eq!(hidden(Get), [false, false, true, false, false, false]);
        assert_eq!(hidden(Set), [false, true, false, false, false, false]);
        assert_eq!(hidden(Delete), [false, true, false, false, false, false]);
        assert_eq!(hidden(Arithmetic), [true, true, false, false, false, false]);
    }
}
