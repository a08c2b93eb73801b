//! One line of the authentication file.
//!
//! | line | |
//! |---|---|
//! | `USER:SECRET` or `USER:SECRET:ROLE` | SECRET is a password without a colon, or a hash ([`Hashed`]) |
//! | `cert:NAME::ROLE`, `peer:USER::ROLE` | |
//!
//! ROLE is `ro`, `rw`, `ro:prefix=PREFIX` or `rw:prefix=PREFIX`. Whatever is not exactly one of these forms is refused: a mistyped role that
//! counted as part of a password would make a user who may do everything. So is a line that has one of these forms and is most likely a
//! mistake, such as `#ann:secret`. Each such line has another form that is taken, and the reason names it.
//!
//! A file that was made for memcached (`MEMCACHED_SASL_PWDB`) is read by [`read_memcached`]: a colon ends the password.
//!
//! Never: puts a secret, or a part of one, into a reason.

use super::TOKEN_MAX;
use super::password::{self, Hashed};
use super::role::{UserRole, is_prefix};

/// Longest name of a user, bytes.
const NAME_LEN_MAX: usize = 250;
/// Longest password, bytes.
pub(super) const PASSWORD_LEN_MAX: usize = TOKEN_MAX / 2;
/// Longest name in a certificate, bytes.
const CERTIFICATE_NAME_LEN_MAX: usize = 2048;
/// The names that begin lines of their own kinds.
const CERTIFICATE: &str = "cert";
const PEER: &str = "peer";
/// What people write for a role.
const LIKE_ROLES: [&str; 8] = ["ro", "rw", "r", "w", "readonly", "read-only", "readwrite", "read-write"];
/// What precedes the prefix of a role.
const PREFIX: &str = "prefix=";

/// A line that was understood.
#[derive(Clone)]
pub(super) enum Line<'a> {
    User {
        name: &'a str,
        secret: Secret<'a>,
        role: UserRole,
    },
    Certificate {
        name: &'a str,
        role: UserRole,
    },
    Peer {
        name: &'a str,
        role: UserRole,
    },
}

/// What a user proves itself by.
#[derive(Clone)]
pub(super) enum Secret<'a> {
    Plain(&'a str),
    Hashed(Hashed),
}

/// Reads a line, which has no line end and is not empty. `Err`: why it is refused, and what to write.
pub(super) fn read(line: &[u8]) -> Result<Line<'_>, String> {
    let line = std::str::from_utf8(line).map_err(|error| format!("byte {} is not UTF-8; {HASH_IT}", error.valid_up_to() + 1))?;
    if let Some((at, found)) = line.char_indices().find(|(_, found)| is_unseen(*found)) {
        return Err(format!(
            "byte {} is a character that is not seen ({}): remove it",
            at + 1,
            found.escape_unicode()
        ));
    }
    if line.trim().len() < line.len() {
        return Err("it begins or ends with a blank: remove the blank".to_owned());
    }
    if line.starts_with('#') {
        return Err("it begins with #, but this file has no comments: remove the line".to_owned());
    }
    match line.split_once(':') {
        None => Err("there is no colon; write USER:PASSWORD, and :ro or :rw after it if wanted".to_owned()),
        Some((CERTIFICATE, rest)) => {
            let (name, role) = named(rest, CERTIFICATE)?;
            Ok(Line::Certificate { name, role })
        }
        Some((PEER, rest)) => {
            let (name, role) = named(rest, PEER)?;
            Ok(Line::Peer { name, role })
        }
        Some((name, _)) if !is_user_name(name) => {
            Err(format!("\"{}\" is not the name of a user: {USER_NAMES}", name.escape_debug()))
        }
        Some((name, rest)) => of_user(name, rest),
    }
}

/// Reads a line of a file that was made for memcached: a colon ends the password there, whatever follows. What follows is read only if it is
/// a role, or a mistyped one. `None`: the line begins with `#`, so it cannot be meant as a user.
pub(super) fn read_memcached(line: &[u8]) -> Result<Option<Line<'_>>, String> {
    if line.starts_with(b"#") {
        return Ok(None);
    }
    let mut colons = (0..line.len()).filter(|&at| line.get(at) == Some(&b':'));
    let (Some(name), Some(secret)) = (colons.next(), colons.next()) else {
        return read(line).map(Some);
    };
    let is_of_other_kind = [CERTIFICATE, PEER]
        .iter()
        .any(|kind| line[..name].eq_ignore_ascii_case(kind.as_bytes()));
    let next = line[secret + 1..].split(|&byte| byte == b':').next().unwrap_or_default();
    let is_role = std::str::from_utf8(next).is_ok_and(|word| is_like_role(word.trim()));
    read(if is_of_other_kind || is_role { line } else { &line[..secret] }).map(Some)
}

/// What the name of a user has to be, for people.
pub(super) const USER_NAMES: &str = "it needs 1 to 250 bytes, none of them a blank, a colon or a control character; does not begin with #; and is not cert \
                                     or peer, which begin lines of other kinds in small letters";

/// Whether a line can begin with this as the name of a user.
pub(super) fn is_user_name(name: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&name.len())
        && !name.starts_with('#')
        && !name.chars().any(|found| found == ' ' || found == ':' || is_unseen(found))
        && ![CERTIFICATE, PEER].iter().any(|kind| name.eq_ignore_ascii_case(kind))
}

const HASH_IT: &str = "a password with other characters is written as a hash, which keyway password makes";

fn of_user<'a>(name: &'a str, rest: &'a str) -> Result<Line<'a>, String> {
    let (secret, role) = match rest.split_once(':') {
        None => (rest, UserRole::FULL),
        Some((secret, role)) => (secret, read_role(role)?),
    };
    if secret.is_empty() {
        return Err("there is no password after the name: write USER:PASSWORD".to_owned());
    }
    if secret.trim().len() < secret.len() {
        return Err(format!(
            "the password begins or ends with a blank: remove the blank; {HASH_IT}"
        ));
    }
    if is_like_role(secret) {
        return Err(format!(
            "there is a role where the password has to be: write USER:PASSWORD:ro or USER:PASSWORD:rw; {HASH_IT}"
        ));
    }
    let secret = match password::is_hashed(secret.as_bytes()) {
        true => Secret::Hashed(Hashed::parse(secret.as_bytes())?),
        false if is_like_other_hash(secret) => {
            return Err(format!(
                "the password looks like a hash of a kind that is not known here: the server knows Argon2 ($argon2id$…); {HASH_IT}"
            ));
        }
        false if secret.len() > PASSWORD_LEN_MAX => {
            return Err(format!(
                "the password has {} bytes, and a login has room for {PASSWORD_LEN_MAX}: shorten it",
                secret.len()
            ));
        }
        false => Secret::Plain(secret),
    };
    Ok(Line::User { name, secret, role })
}

/// What follows the kind of a line: a name, nothing in the place of a password, and a role.
fn named<'a>(rest: &'a str, kind: &str) -> Result<(&'a str, UserRole), String> {
    let form = || format!("write {kind}:NAME::ro or {kind}:NAME::rw, and :prefix=PREFIX after it if wanted");
    let is_role = |at: usize| {
        let role = rest.get(at + 2..at + 4).unwrap_or_default();
        role.eq_ignore_ascii_case("ro") || role.eq_ignore_ascii_case("rw")
    };
    let (at, _) = rest.match_indices("::").find(|(at, _)| is_role(*at)).ok_or_else(form)?;
    let (name, role) = (&rest[..at], read_role(&rest[at + 2..])?);
    let last = name.rsplit(':').next().unwrap_or_default();
    if name.trim().len() < name.len() || last.is_empty() || (last != name && is_like_role(last)) {
        return Err(form());
    }
    if name.len() > CERTIFICATE_NAME_LEN_MAX {
        return Err(format!(
            "the name has {} bytes, and may have {CERTIFICATE_NAME_LEN_MAX}: shorten it",
            name.len()
        ));
    }
    Ok((name, role))
}

fn read_role(text: &str) -> Result<UserRole, String> {
    let (access, prefix) = match text.split_once(':') {
        None => (text, None),
        Some((access, prefix)) => (access, Some(prefix)),
    };
    let may_write = match access {
        "ro" => Some(false),
        "rw" => Some(true),
        _ => None,
    };
    let prefix = match prefix {
        None => Some(""),
        Some(prefix) => prefix.strip_prefix(PREFIX),
    };
    let (Some(may_write), Some(prefix)) = (may_write, prefix) else {
        return Err(format!(
            "what follows the password is not :ro, :rw, :ro:prefix=PREFIX or :rw:prefix=PREFIX; {HASH_IT}"
        ));
    };
    if text.contains(':') && !is_prefix_of_role(prefix) {
        return Err(format!("the prefix cannot be used: {PREFIXES}; a role is written before it"));
    }
    Ok(UserRole::new(may_write, prefix.as_bytes()))
}

/// What the prefix of a role has to be, for people.
pub(super) const PREFIXES: &str =
    "it needs 1 to 250 bytes, none of them a space or a control character, and does not end like a role, as :ro";

/// Whether a line can have this as the prefix of its role.
pub(super) fn is_prefix_of_role(prefix: &str) -> bool {
    let ends_like_role = prefix.rsplit_once(':').is_some_and(|(_, last)| is_like_role(last));
    is_prefix(prefix.as_bytes()) && !prefix.contains(":prefix=") && !ends_like_role
}

fn is_like_role(word: &str) -> bool {
    LIKE_ROLES.iter().any(|role| word.eq_ignore_ascii_case(role)) || word.starts_with(PREFIX)
}

/// Whether a password looks like a hash of crypt(3) (`$6$…`, `$2y$…`) or of RFC 2307 (`{SSHA}…`): it would be compared as it stands.
fn is_like_other_hash(secret: &str) -> bool {
    let ends = |rest: &str, end| {
        rest.find(end)
            .is_some_and(|at| at > 0 && rest[..at].bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
    };
    secret.strip_prefix('$').is_some_and(|rest| ends(rest, '$')) || secret.strip_prefix('{').is_some_and(|rest| ends(rest, '}'))
}

/// Whether a character is not seen in an editor: a control character, a blank other than the space, or one without a width or that turns
/// the direction of text.
fn is_unseen(found: char) -> bool {
    found.is_control()
        || (found.is_whitespace() && found != ' ')
        || matches!(found, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(line: &str) -> UserRole {
        match read(line.as_bytes()) {
            Ok(Line::User { role, .. } | Line::Certificate { role, .. } | Line::Peer { role, .. }) => role,
            Err(why) => panic!("{line}: {why}"),
        }
    }

    fn refused(line: &[u8]) -> String {
        match read(line) {
            Ok(_) => panic!("{} is taken", line.escape_ascii()),
            Err(why) => why,
        }
    }

    #[test]
    fn the_forms_are_taken_as_they_stand() {
        for (line, expected) in [
            ("ann:x", UserRole::FULL),
            ("ann:x:rw", UserRole::FULL),
            ("ann:x:ro", UserRole::new(false, b"")),
            ("ann:x:ro:prefix=shop:", UserRole::new(false, b"shop:")),
            ("ann:x:rw:prefix=a:b", UserRole::new(true, b"a:b")),
            ("cert:web server::ro", UserRole::new(false, b"")),
            ("cert:spiffe://a/b::rw:prefix=b:", UserRole::new(true, b"b:")),
            ("cert:https://[fe80::1]/::rw", UserRole::FULL),
            ("cert:ro::ro", UserRole::new(false, b"")),
            ("peer:0::ro", UserRole::new(false, b"")),
            ("\u{e4}nn:p\u{e4}ss w\u{f6}rd #1:ro", UserRole::new(false, b"")),
        ] {
            assert_eq!(role_of(line), expected, "{line}");
        }
        let password = |line: &'static str| match read(line.as_bytes()) {
            Ok(Line::User {
                secret: Secret::Plain(password),
                ..
            }) => password,
            _ => panic!("{line}"),
        };
        assert_eq!(
            (password("ann:secret one"), password("ann:$5 a{b}:rw")),
            ("secret one", "$5 a{b}")
        );
    }

    #[test]
    fn every_other_line_is_refused_with_its_remedy() {
        let long = "x".repeat(PASSWORD_LEN_MAX + 1);
        for (lines, remedy) in [
            // Roles and prefixes that are mistyped.
            (
                &[
                    "ann:secret:RO",
                    "ann:secret: ro",
                    "ann:secret:ro :prefix=a",
                    "ann:secret:readonly",
                    "ann:secret:r",
                    "ann:secret:ro:",
                    "ann:secret:",
                    "ann:secret:ro:prefix",
                    "ann:secret:ro:Prefix=shop:",
                    "ann:secret:ro:prefix:shop:",
                    "ann:secret:ro prefix=shop:",
                    "ann:secret:prefix=shop:",
                    "ann:secret:rob",
                    "ann:a:b",
                    "ann:a:b:rw",
                    "ann:a:ro:rw",
                    "ann::ro:rw",
                ][..],
                "is not :ro, :rw, :ro:prefix=PREFIX",
            ),
            (
                &[
                    "ann:x:ro:prefix=",
                    "ann:x:rw:prefix=a b",
                    "ann:x:ro:prefix=a:ro",
                    "ann:x:ro:prefix=a:RW",
                    "ann:x:rw:prefix=a:ro:prefix=b",
                ],
                "the prefix cannot be used",
            ),
            // Passwords.
            (&["ann:", "ann::ro", "ann::rw:prefix=a"], "no password after the name"),
            (
                &["ann:ro", "ann:RW", "ann:readonly", "ann:prefix=a", "ann:ro:ro"],
                "a role where the password has to be",
            ),
            (&["ann: secret", "ann:secret :ro", "ann: :ro"], "remove the blank"),
            (
                &[
                    "ann:$2y$10$abcdefghijklmnopqrstuv",
                    "ann:$6$salt$hash:ro",
                    "ann:{SSHA}abc",
                    "ann:$Argon2id$v=19$m",
                ],
                "the server knows Argon2",
            ),
            (&["ann:$argon2id$nonsense"], "the hash"),
            // Names.
            (&[":ro", ":readonly", ":", ":secret:ro"], "1 to 250 bytes"),
            (
                &["a b:secret", "Peer:0::ro", "CERT:alice::ro", "Cert:alice"],
                "none of them a blank",
            ),
            (&["#ann:old", "# a comment", "#"], "no comments: remove the line"),
            (&["ann", "ann secret", "ann=secret"], "write USER:PASSWORD"),
            // Certificates and users of this machine.
            (
                &[
                    "cert:alice",
                    "cert:alice:ro",
                    "cert:alice:secret",
                    "cert:::ro",
                    "cert::ro",
                    "cert: alice::ro",
                    "cert:alice ::ro",
                    "cert:alice:::ro",
                    "cert:alice:ro::rw",
                    "cert:alice::r",
                ],
                "write cert:NAME::ro",
            ),
            (
                &["cert:alice::RO", "cert:alice::ro::rw", "peer:0::ro:shop"],
                "is not :ro, :rw",
            ),
            (&["peer:root", "peer:root:ro", "peer:::ro"], "write peer:NAME::ro"),
            // Blanks and what is not seen.
            (&[" ", " ann:x", "ann:x ", "ann:x:ro ", " peer:0::ro"], "remove the blank"),
            (
                &[
                    "ann:x\t",
                    "ann:x:ro\t",
                    "ann:\tx",
                    "ann:x\r",
                    "ann:x\rbob:y",
                    "\u{feff}ann:x",
                    "ann:x\u{200b}:ro",
                    "ann:x:ro\u{a0}",
                    "ann:x\u{2028}",
                    "ann\0:x",
                    "ann:x\u{202e}or:",
                ],
                "not seen",
            ),
            (&[&format!("ann:{long}"), &format!("ann:{long}:ro")], "shorten it"),
            (&[&format!("{}:x", &long[..251])], "1 to 250 bytes"),
        ] {
            for line in lines {
                let why = refused(line.as_bytes());
                assert!(why.contains(remedy), "{line}: {why}");
            }
        }
        assert!(refused(b"ann:p\xe4ss").contains("byte 6 is not UTF-8"));
    }

    #[test]
    fn a_colon_ends_the_password_in_a_file_of_memcached() {
        let user = |line: &'static str| match read_memcached(line.as_bytes()) {
            Ok(Some(Line::User {
                name,
                secret: Secret::Plain(password),
                role,
            })) => (name, password, role),
            other => panic!("{line}: {:?}", other.err()),
        };
        for (line, name, role) in [
            ("ann:secret", "ann", UserRole::FULL),
            ("ann@host:secret", "ann@host", UserRole::FULL),
            ("ann@host:secret:::::::", "ann@host", UserRole::FULL),
            ("ann:secret:1000:Ann Other:\t:", "ann", UserRole::FULL),
            ("ann:secret:ro", "ann", UserRole::new(false, b"")),
            ("ann:secret:rw:prefix=shop:", "ann", UserRole::new(true, b"shop:")),
        ] {
            assert_eq!(user(line), (name, "secret", role), "{line}");
        }
        assert!(matches!(read_memcached(b"cert:web::ro"), Ok(Some(Line::Certificate { .. }))));
        assert!(matches!(read_memcached(b"# ann:secret"), Ok(None)));
        for line in [
            "ann:secret:RO",
            "ann:secret: ro:",
            "ann:secret:prefix=shop:",
            "ann::",
            "ann: secret::",
            "cert:web:",
            "Peer:0:secret",
            "ann",
        ] {
            assert!(read_memcached(line.as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn no_reason_has_a_part_of_a_secret() {
        for line in [
            "ann:swordfish:RO",
            "ann: swordfish",
            "ann:swordfish\t",
            "ann:$6$swordfish",
            "ann:swordfish:rw:prefix=a b",
        ] {
            let why = refused(line.as_bytes());
            assert!(!why.contains("fish"), "{line}: {why}");
        }
    }
}
