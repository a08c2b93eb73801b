//! The authentication file, and the look-ups in it.
//!
//! | line | who | how it proves that |
//! |---|---|---|
//! | `USER:SECRET[:ROLE]` | a user with a password | by a login; SECRET is the password, or an Argon2 hash of it |
//! | `cert:NAME::ROLE` | a client with a certificate for this name (common name, or DNS, mail or URI name) | by TLS |
//! | `peer:USER::ROLE` | a process of this user of this machine | by a Unix socket (`SO_PEERCRED`) |
//!
//! ROLE is `ro` or `rw`, and may be followed by `:prefix=PREFIX`. It begins at the first `:ro` or `:rw` that is followed by the end of the
//! line or by `:prefix=`, so a password may have colons. Only the file's owner and group may read it.
//!
//! Passwords are kept as keyed digests with a key that exists only in this process. A hashed password gets its digest when its user logs in
//! for the first time; later logins are then decided at once.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use ring::hmac;
use ring::rand::SystemRandom;
use subtle::ConstantTimeEq;

use super::password::{self, Hashed};
use super::role::{Role, is_prefix};

/// Bits of a file's mode that let every user read or change it, and the bit that lets its group change it.
const OTHERS: u32 = 0o006;
const GROUP_WRITES: u32 = 0o020;
/// Length of a digest, bytes.
const DIGEST_LEN: usize = 32;

type Digest = [u8; DIGEST_LEN];

/// The contents of an authentication file.
pub(crate) struct Users {
    key: hmac::Key,
    users: Vec<Arc<User>>,
    certificates: Vec<(Vec<u8>, Arc<Role>)>,
    peers: Vec<Peer>,
}

/// A user with a password.
struct User {
    name: Vec<u8>,
    role: Arc<Role>,
    /// of name and password; a hashed password that was not used yet has none
    digest: OnceLock<Digest>,
    hashed: Option<Hashed>,
}

/// A user of this machine.
struct Peer {
    name: String,
    uid: u32,
    role: Arc<Role>,
}

/// The result of a login.
pub(crate) enum Judgement {
    Admitted(Arc<Role>),
    Refused,
    /// hashed passwords have to be verified, which takes long
    Undecided(Check),
}

/// The hashed passwords that a login has to be compared with.
pub(crate) struct Check {
    users: Vec<Arc<User>>,
    password: Vec<u8>,
    digest: Digest,
}

/// Why an authentication file cannot be used.
#[derive(Debug)]
pub enum AuthFileError {
    /// it cannot be read
    Read(std::io::Error),
    /// this line (counted from 1) is not `user:password`
    Line(usize),
    /// this line (counted from 1) cannot be used, for this reason
    Entry(usize, String),
    /// it has no user
    Empty,
    /// users besides its owner and group can read or change it; its mode
    Open(u32),
    /// the system has no random numbers
    NoRandomness,
}

impl fmt::Display for AuthFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot be read: {error}"),
            Self::Line(line) => write!(f, "line {line} is not \"user:password\""),
            Self::Entry(line, why) => write!(f, "line {line}: {why}"),
            Self::Open(mode) => write!(
                f,
                "has mode {mode:03o}: every user of this machine can read or change its passwords; chmod 600 it (640 for a group)"
            ),
            Self::Empty => write!(f, "has no line \"user:password\", so no client could log in"),
            Self::NoRandomness => write!(f, "cannot be used: the system has no random numbers"),
        }
    }
}

impl Users {
    /// Reads the file. `before`: the contents that are in force, whose users of this machine need not be looked up again.
    pub(crate) fn load(path: &Path, before: Option<&Self>) -> Result<Self, AuthFileError> {
        let mut file = File::open(path).map_err(AuthFileError::Read)?;
        let mode = file.metadata().map_err(AuthFileError::Read)?.mode() & 0o777;
        if mode & (OTHERS | GROUP_WRITES) != 0 {
            return Err(AuthFileError::Open(mode));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(AuthFileError::Read)?;
        Self::parse(&text, before)
    }

    fn parse(text: &[u8], before: Option<&Self>) -> Result<Self, AuthFileError> {
        let mut found = Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| AuthFileError::NoRandomness)?,
            users: Vec::new(),
            certificates: Vec::new(),
            peers: Vec::new(),
        };
        for (index, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|&b| b == b':').ok_or(AuthFileError::Line(index + 1))?;
            let (name, rest) = (&line[..colon], &line[colon + 1..]);
            let entry = |why| AuthFileError::Entry(index + 1, why);
            match name {
                b"cert" => found.add_certificate(rest).map_err(entry)?,
                b"peer" => found.add_peer(rest, before).map_err(entry)?,
                _ => found.add_user(name, rest).map_err(entry)?,
            }
        }
        match found.users.is_empty() && found.certificates.is_empty() && found.peers.is_empty() {
            true => Err(AuthFileError::Empty),
            false => Ok(found),
        }
    }

    fn add_user(&mut self, name: &[u8], rest: &[u8]) -> Result<(), String> {
        let (secret, role) = split_role(rest)?;
        if secret.is_empty() && role.is_some() {
            return Err("there is no password before the role".to_owned());
        }
        let digest = OnceLock::new();
        let hashed = match password::is_hashed(secret) {
            true => Some(Hashed::parse(secret)?),
            false => {
                let _ = digest.set(self.digest(name, secret));
                None
            }
        };
        self.users.push(Arc::new(User {
            name: name.to_vec(),
            role: Arc::new(role.unwrap_or(Role::FULL)),
            digest,
            hashed,
        }));
        Ok(())
    }

    fn add_certificate(&mut self, rest: &[u8]) -> Result<(), String> {
        let (name, role) = named(rest, "cert")?;
        if self.certificates.iter().any(|(known, _)| known == name) {
            return Err(format!("cert:{} has a line already", name.escape_ascii()));
        }
        self.certificates.push((name.to_vec(), Arc::new(role)));
        Ok(())
    }

    fn add_peer(&mut self, rest: &[u8], before: Option<&Self>) -> Result<(), String> {
        let (name, role) = named(rest, "peer")?;
        let name = String::from_utf8_lossy(name).into_owned();
        let known = before.and_then(|before| before.peers.iter().find(|peer| peer.name == name));
        let uid = match (known, name.parse()) {
            (Some(known), _) => known.uid,
            (None, Ok(uid)) => uid,
            (None, Err(_)) => match nix::unistd::User::from_name(&name) {
                Ok(Some(user)) => user.uid.as_raw(),
                Ok(None) => return Err(format!("this machine has no user \"{name}\"; give a name or a number")),
                Err(error) => return Err(format!("the user \"{name}\" cannot be looked up ({error}); give the number")),
            },
        };
        if self.peers.iter().any(|peer| peer.uid == uid) {
            return Err(format!("peer:{name} (user {uid}) has a line already"));
        }
        self.peers.push(Peer {
            name,
            uid,
            role: Arc::new(role),
        });
        Ok(())
    }

    /// Compares with every entry, and each in constant time, so that the time taken does not show how much of a password is right.
    pub(crate) fn judge(&self, user: &[u8], password: &[u8]) -> Judgement {
        let digest = self.digest(user, password);
        let mut admitted = None;
        let mut undecided = Vec::new();
        for entry in &self.users {
            match entry.digest.get() {
                Some(right) if bool::from(right.ct_eq(&digest)) => admitted = Some(Arc::clone(&entry.role)),
                Some(_) => {}
                None if bool::from(entry.name.ct_eq(user)) => undecided.push(Arc::clone(entry)),
                None => {}
            }
        }
        match admitted {
            Some(role) => Judgement::Admitted(role),
            None if undecided.is_empty() => Judgement::Refused,
            None => Judgement::Undecided(Check {
                users: undecided,
                password: password.to_vec(),
                digest,
            }),
        }
    }

    /// The role of a client whose certificate has these names: that of the first line with one of them.
    pub(crate) fn role_of_certificate(&self, names: &[Vec<u8>]) -> Option<Arc<Role>> {
        let entry = self.certificates.iter().find(|(name, _)| names.contains(name))?;
        Some(Arc::clone(&entry.1))
    }

    /// Whether a certificate can take the place of a password.
    pub(crate) fn knows_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// The role of a process of this user of this machine.
    pub(crate) fn role_of_peer(&self, uid: u32) -> Option<Arc<Role>> {
        let peer = self.peers.iter().find(|peer| peer.uid == uid)?;
        Some(Arc::clone(&peer.role))
    }

    /// A digest that only this process can compute. The length of the password has no influence on a comparison.
    fn digest(&self, user: &[u8], password: &[u8]) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&user.len().to_be_bytes());
        context.update(user);
        context.update(password);
        let mut digest = [0; DIGEST_LEN];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }
}

impl Check {
    /// Takes long: see [`Hashed::is`].
    pub(super) fn run(&self) -> Option<Arc<Role>> {
        let right = self
            .users
            .iter()
            .find(|user| user.hashed.as_ref().is_some_and(|hashed| hashed.is(&self.password)))?;
        // The same login may have been verified twice at a time.
        let _ = right.digest.set(self.digest);
        Some(Arc::clone(&right.role))
    }
}

/// What follows the name of a certificate or of a user of this machine: nothing, and a role.
fn named<'a>(rest: &'a [u8], what: &str) -> Result<(&'a [u8], Role), String> {
    match split_role(rest)? {
        (name, Some(role)) if name.len() > 1 && name.ends_with(b":") => Ok((&name[..name.len() - 1], role)),
        _ => Err(format!(
            "write {what}:NAME::ro or {what}:NAME::rw, and :prefix=PREFIX after it if wanted"
        )),
    }
}

/// Splits a role off the end.
fn split_role(rest: &[u8]) -> Result<(&[u8], Option<Role>), String> {
    const PREFIX: &[u8] = b":prefix=";
    for at in 0..rest.len() {
        let (secret, role) = rest.split_at(at);
        let Some((access @ (b":ro" | b":rw"), prefix)) = role.split_at_checked(3) else {
            continue;
        };
        let may_write = access == b":rw";
        if prefix.is_empty() {
            return Ok((secret, Some(Role::new(may_write, b""))));
        }
        if let Some(prefix) = prefix.strip_prefix(PREFIX) {
            return match is_prefix(prefix) {
                true => Ok((secret, Some(Role::new(may_write, prefix)))),
                false => Err("a prefix has 1 to 250 bytes, none of them a space or a control character".to_owned()),
            };
        }
    }
    // Otherwise a mistyped role would be part of a password, whose user may do everything.
    match rest.windows(PREFIX.len()).any(|part| part == PREFIX) {
        true => Err("\":prefix=\" needs :ro or :rw directly before it".to_owned()),
        false => Ok((rest, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::auth_line;

    fn users(text: &str) -> Users {
        Users::parse(text.as_bytes(), None).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The role after a login; a hashed password is verified here.
    fn role(users: &Users, user: &str, password: &str) -> Option<Role> {
        match users.judge(user.as_bytes(), password.as_bytes()) {
            Judgement::Admitted(role) => Some(Role::clone(&role)),
            Judgement::Refused => None,
            Judgement::Undecided(check) => check.run().map(|role| Role::clone(&role)),
        }
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        let users = users("ann:secret one\r\n\nbob:b:c\n");
        assert_eq!(users.users.len(), 2);
        assert_eq!(role(&users, "ann", "secret one"), Some(Role::FULL));
        assert_eq!(role(&users, "bob", "b:c"), Some(Role::FULL));
        for (user, password) in [
            ("bob", "b:d"),
            ("bob", "b"),
            ("bob", ""),
            ("ann", "b:c"),
            ("annsecret", " one"),
            ("", ""),
        ] {
            assert_eq!(role(&users, user, password), None, "{user} {password}");
        }
        assert!(matches!(Users::parse(b"ann:x\nnobody\n", None), Err(AuthFileError::Line(2))));
        assert!(matches!(Users::parse(b"\n", None), Err(AuthFileError::Empty)));
    }

    #[test]
    fn a_line_may_end_with_a_role() {
        for (line, password, expected) in [
            ("ann:x:ro", "x", Role::new(false, b"")),
            ("ann:x:rw", "x", Role::FULL),
            ("ann:x:ro:prefix=shop:", "x", Role::new(false, b"shop:")),
            ("ann:x:rw:prefix=a:ro:prefix=b", "x", Role::new(true, b"a:ro:prefix=b")),
            ("ann:x:y:rw", "x:y", Role::FULL),
            ("ann:x:rob", "x:rob", Role::FULL),
            ("ann:ro", "ro", Role::FULL),
            ("ann:x:ro:rw", "x:ro", Role::FULL),
        ] {
            assert_eq!(role(&users(line), "ann", password), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_line_that_may_be_a_mistake_is_refused_with_its_number() {
        for line in [
            "ann:x:prefix=shop:",
            "ann:x:r0:prefix=shop:",
            "ann:x:ro:prefix=",
            "ann:x:rw:prefix=a b",
            "ann::ro",
            "ann:$argon2id$nonsense",
            "cert:name",
            "cert:name:password",
            "cert:name:ro",
            "cert:::ro",
            "peer:root",
            "peer:no such user::ro",
            "cert:a::ro\ncert:a::rw",
            "peer:0::ro\npeer:root::rw",
        ] {
            let text = format!("eve:y\n{line}");
            match Users::parse(text.as_bytes(), None) {
                Err(AuthFileError::Entry(number, _)) => assert_eq!(number, text.lines().count(), "{line}"),
                other => panic!("{line}: {:?}", other.err()),
            }
        }
    }

    #[test]
    fn a_hashed_password_is_verified_once() {
        let line = auth_line("ann", b"secret", true, Some("shop:")).unwrap();
        let users = users(&format!("{line}\nbob:plain"));
        assert_eq!(role(&users, "ann", "wrong"), None);
        let is_undecided = || matches!(users.judge(b"ann", b"secret"), Judgement::Undecided(_));
        assert!(is_undecided());
        assert_eq!(role(&users, "ann", "secret"), Some(Role::new(false, b"shop:")));
        assert!(!is_undecided(), "its digest is known");
        assert_eq!(role(&users, "ann", "secret"), Some(Role::new(false, b"shop:")));
        assert!(matches!(users.judge(b"ann", b"wrong"), Judgement::Refused));
        assert!(matches!(users.judge(b"bob", b"wrong"), Judgement::Refused));
    }

    #[test]
    fn a_user_may_have_two_passwords_while_they_change() {
        let new = auth_line("ann", b"new", false, None).unwrap();
        let users = users(&format!("ann:old:ro\n{new}"));
        assert_eq!(role(&users, "ann", "old"), Some(Role::new(false, b"")));
        assert_eq!(role(&users, "ann", "new"), Some(Role::FULL));
        assert_eq!(role(&users, "ann", "other"), None);
    }

    #[test]
    fn certificates_and_users_of_this_machine_have_roles() {
        let users = users("cert:web server::ro\ncert:spiffe://a/b::rw:prefix=b:\npeer:root::rw\npeer:4242::ro:prefix=x");
        let certificate = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            users.role_of_certificate(&names).map(|role| Role::clone(&role))
        };
        assert_eq!(certificate(&["web server"]), Some(Role::new(false, b"")));
        assert_eq!(certificate(&["other", "spiffe://a/b"]), Some(Role::new(true, b"b:")));
        assert_eq!(
            certificate(&["spiffe://a/b", "web server"]),
            Some(Role::new(false, b"")),
            "the first line"
        );
        assert_eq!(certificate(&["web", ""]), None);
        let peer = |uid| users.role_of_peer(uid).map(|role| Role::clone(&role));
        assert_eq!(
            (peer(0), peer(4242), peer(1)),
            (Some(Role::FULL), Some(Role::new(false, b"x")), None)
        );
        // A name that is known need not be looked up again, which the sandbox may forbid.
        let mut before = self::users("peer:root::ro");
        before.peers[0].name = "no such user".to_owned();
        let again = Users::parse(b"peer:no such user::rw", Some(&before)).unwrap();
        assert!(again.role_of_peer(0).is_some());
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("keyway-auth-{}", std::process::id()));
        std::fs::write(&path, "ann:x\n").unwrap();
        for (mode, admitted) in [
            (0o600, true),
            (0o640, true),
            (0o400, true),
            (0o644, false),
            (0o602, false),
            (0o660, false),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match Users::load(&path, None) {
                Ok(_) => assert!(admitted, "{mode:o}"),
                Err(error) => assert!(!admitted && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
