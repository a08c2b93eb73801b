//! `--region-writers`, `--region-readers`: the users and groups that may have the region.

use keyway_server::Allowed;
use nix::unistd::{Group, User};

/// Users by name or number, groups the same after a colon, separated by commas.
pub(crate) fn parse(text: &str) -> Result<Allowed, String> {
    let mut allowed = Allowed::default();
    for word in text.split(',') {
        match word.strip_prefix(':') {
            Some(group) => allowed.groups.push(number(group, "group", |name| {
                Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
            })?),
            None => allowed.users.push(number(word, "user", |name| {
                User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
            })?),
        }
    }
    Ok(allowed)
}

fn number(word: &str, what: &str, find: impl Fn(&str) -> Option<u32>) -> Result<u32, String> {
    if let Ok(number) = word.parse() {
        return Ok(number);
    }
    find(word).ok_or_else(|| {
        format!("there is no {what} \"{word}\"; give users by name or number, groups after a colon: alice,1000,:www-data")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_named_or_numbered() {
        let expected = Allowed {
            users: vec![0, 1000],
            groups: vec![0, 33],
        };
        assert_eq!(parse("root,1000,:root,:33"), Ok(expected));
    }

    #[test]
    fn a_user_who_does_not_exist_is_refused_by_name() {
        for (text, told) in [
            ("no-such-user", "no-such-user"),
            (":no-such-group", "no-such-group"),
            ("", "\"\""),
            ("7,", "\"\""),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(told), "{why}");
        }
    }
}
