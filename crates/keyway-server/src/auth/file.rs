//! The authentication file, and the look-ups in it.
//!
//! | line | who | how it proves that |
//! |---|---|---|
//! | `USER:SECRET[:ROLE]` | a user with a password | by a login; SECRET is the password, or an Argon2 hash of it |
//! | `cert:NAME::ROLE` | a client with a certificate for this name (common name, or DNS, mail or URI name) | by TLS |
//! | `peer:USER::ROLE` | a process of this user of this machine | by a Unix socket (`SO_PEERCRED`) |
//!
//! A file that was made for memcached (`MEMCACHED_SASL_PWDB`) has `USER@HOST:PASSWORD` or `USER:PASSWORD`: see [`UserLines::Memcached`].
//!
//! What a line has to be stands in [`mod@line`]. One line that is refused makes the file refused as a whole: the server does not
//! start, or goes on with the users that it has. Only the file's owner and group may read it.
//!
//! Passwords are kept as keyed digests with a key that exists only in this process. A hashed password gets its digest when its user logs in
//! for the first time; later logins are then decided at once.

use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use nix::libc::O_NONBLOCK;
use ring::hmac;
use ring::rand::SystemRandom;
use subtle::ConstantTimeEq;

use super::line::{self, Line, Secret};
use super::password::Hashed;
use super::role::UserRole;

/// Bits of a file's mode that let every user read or change it, and the bit that lets its group change it.
const OTHERS: u32 = 0o006;
const GROUP_WRITES: u32 = 0o020;
/// Longest file, bytes: some hundred thousand users.
const FILE_LEN_MAX: u64 = 16 << 20;
/// Length of a digest, bytes.
const DIGEST_LEN: usize = 32;

type Digest = [u8; DIGEST_LEN];

/// By whose rules the lines of an authentication file are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UserLines {
    /// Keyway's: a line that is not exactly right is refused
    #[default]
    Keyway,
    /// memcached's and Cyrus SASL's: a colon ends the password; a client that logs in as `USER` is `USER@HOST`, HOST being this name of the
    /// machine; and the first line of a user is the one that counts. Without a line for `USER@HOST` that for `USER` counts
    Memcached {
        /// this machine's name
        host: String,
    },
}

impl UserLines {
    /// memcached's, on this machine.
    pub fn of_memcached() -> Self {
        let name = nix::unistd::gethostname().unwrap_or_default();
        Self::Memcached {
            host: name.to_string_lossy().into_owned(),
        }
    }
}

/// The contents of an authentication file.
pub(crate) struct Users {
    key: hmac::Key,
    users: Vec<Arc<User>>,
    certificates: Vec<(Vec<u8>, Arc<UserRole>)>,
    peers: Vec<PeerName>,
}

/// A user with a password.
struct User {
    name: Vec<u8>,
    role: Arc<UserRole>,
    /// of name and password; a hashed password that was not used yet has none
    digest: OnceLock<Digest>,
    hashed: Option<Hashed>,
}

/// A user of this machine.
struct PeerName {
    name: String,
    uid: u32,
    role: Arc<UserRole>,
}

/// The result of a login.
pub(crate) enum Judgement {
    Admitted(Arc<UserRole>),
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
    /// it is no regular file, but something else that has a path
    Kind,
    /// it has more bytes than this limit
    Large(u64),
    /// this line (counted from 1) cannot be used, for this reason
    Line(usize, String),
    /// it has no line
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
            Self::Kind => write!(f, "is not a regular file: give the path of one"),
            Self::Large(limit) => write!(f, "has more than {limit} bytes: a line for each user is enough"),
            Self::Line(line, why) => write!(f, "line {line}: {why}"),
            Self::Open(mode) => write!(
                f,
                "has mode {mode:03o}: every user of this machine can read or change its passwords; chmod 600 it (640 for a group)"
            ),
            Self::Empty => write!(f, "has no line, so no client could log in: write USER:PASSWORD"),
            Self::NoRandomness => write!(f, "cannot be used: the system has no random numbers"),
        }
    }
}

impl Users {
    /// Reads the file. `before`: the contents that are in force, whose users of this machine need not be looked up again.
    pub(crate) fn load(path: &Path, lines: &UserLines, before: Option<&Self>) -> Result<Self, AuthFileError> {
        let mut options = File::options();
        // A path that leads to a pipe must not hold up the server.
        let file = options
            .read(true)
            .custom_flags(O_NONBLOCK)
            .open(path)
            .map_err(AuthFileError::Read)?;
        let metadata = file.metadata().map_err(AuthFileError::Read)?;
        if !metadata.is_file() {
            return Err(AuthFileError::Kind);
        }
        let mode = metadata.mode() & 0o777;
        if mode & (OTHERS | GROUP_WRITES) != 0 {
            return Err(AuthFileError::Open(mode));
        }
        let mut text = Vec::new();
        file.take(FILE_LEN_MAX + 1)
            .read_to_end(&mut text)
            .map_err(AuthFileError::Read)?;
        if text.len() as u64 > FILE_LEN_MAX {
            return Err(AuthFileError::Large(FILE_LEN_MAX));
        }
        Self::parse(&text, lines, before)
    }

    fn parse(text: &[u8], lines: &UserLines, before: Option<&Self>) -> Result<Self, AuthFileError> {
        let mut found = Self {
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| AuthFileError::NoRandomness)?,
            users: Vec::new(),
            certificates: Vec::new(),
            peers: Vec::new(),
        };
        let mut read = Vec::new();
        for (index, line) in text.split_inclusive(|&b| b == b'\n').enumerate() {
            let line = line
                .strip_suffix(b"\n")
                .map_or(line, |line| line.strip_suffix(b"\r").unwrap_or(line));
            if !line.is_empty() {
                let line = match lines {
                    UserLines::Keyway => line::read(line).map(Some),
                    UserLines::Memcached { .. } => line::read_memcached(line),
                };
                let line = line.map_err(|why| AuthFileError::Line(index + 1, why))?;
                read.extend(line.map(|line| (index + 1, line)));
            }
        }
        if let UserLines::Memcached { host } = lines {
            read = that_count(read, host);
        }
        for (number, line) in read {
            found.add(line, before).map_err(|why| AuthFileError::Line(number, why))?;
        }
        match found.users.is_empty() && found.certificates.is_empty() && found.peers.is_empty() {
            true => Err(AuthFileError::Empty),
            false => Ok(found),
        }
    }

    fn add(&mut self, line: Line<'_>, before: Option<&Self>) -> Result<(), String> {
        match line {
            Line::User { name, secret, role } => self.add_user(name, secret, role),
            Line::Certificate { name, role } => self.add_certificate(name, role),
            Line::Peer { name, role } => self.add_peer(name, role, before),
        }
    }

    fn add_user(&mut self, name: &str, secret: Secret<'_>, role: UserRole) -> Result<(), String> {
        let digest = OnceLock::new();
        let hashed = match secret {
            Secret::Hashed(hashed) => Some(hashed),
            Secret::Plain(password) => {
                let _ = digest.set(self.digest(name.as_bytes(), password.as_bytes()));
                None
            }
        };
        for other in self.users.iter().filter(|other| other.name == name.as_bytes()) {
            if *other.role != role {
                return Err(format!(
                    "{name} has a line already, with another role: the lines of a user, one for each password, have the same role"
                ));
            }
            if other.hashed == hashed && other.digest.get() == digest.get() {
                return Err(format!("{name} has a line with this password already: remove one of them"));
            }
        }
        self.users.push(Arc::new(User {
            name: name.as_bytes().to_vec(),
            role: Arc::new(role),
            digest,
            hashed,
        }));
        Ok(())
    }

    fn add_certificate(&mut self, name: &str, role: UserRole) -> Result<(), String> {
        if self.certificates.iter().any(|(known, _)| known == name.as_bytes()) {
            return Err(format!("cert:{name} has a line already: remove one of them"));
        }
        self.certificates.push((name.as_bytes().to_vec(), Arc::new(role)));
        Ok(())
    }

    fn add_peer(&mut self, name: &str, role: UserRole, before: Option<&Self>) -> Result<(), String> {
        let known = before.and_then(|before| before.peers.iter().find(|peer| peer.name == name));
        let uid = match (known, uid(name)?) {
            (Some(known), _) => known.uid,
            (None, Some(uid)) => uid,
            (None, None) => match nix::unistd::User::from_name(name) {
                Ok(Some(user)) => user.uid.as_raw(),
                Ok(None) => return Err(format!("this machine has no user \"{name}\"; give a name or a number")),
                Err(error) => return Err(format!("the user \"{name}\" cannot be looked up ({error}); give the number")),
            },
        };
        if self.peers.iter().any(|peer| peer.uid == uid) {
            return Err(format!("peer:{name} (user {uid}) has a line already: remove one of them"));
        }
        self.peers.push(PeerName {
            name: name.to_owned(),
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
    pub(crate) fn role_of_certificate(&self, names: &[Vec<u8>]) -> Option<Arc<UserRole>> {
        let entry = self.certificates.iter().find(|(name, _)| names.contains(name))?;
        Some(Arc::clone(&entry.1))
    }

    /// Whether a certificate can take the place of a password.
    pub(crate) fn knows_certificates(&self) -> bool {
        !self.certificates.is_empty()
    }

    /// The role of a process of this user of this machine.
    pub(crate) fn role_of_peer(&self, uid: u32) -> Option<Arc<UserRole>> {
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
    pub(super) fn run(&self) -> Option<Arc<UserRole>> {
        let right = self
            .users
            .iter()
            .find(|user| user.hashed.as_ref().is_some_and(|hashed| hashed.is(&self.password)))?;
        // The same login may have been verified twice at a time.
        let _ = right.digest.set(self.digest);
        Some(Arc::clone(&right.role))
    }
}

/// The lines that count in memcached: the first one of a user, which a client is that logs in as `USER@host`, or as `USER` where a line has
/// `USER@host`. Other users with lines of their own are as their lines have them.
fn that_count<'a>(mut lines: Vec<(usize, Line<'a>)>, host: &str) -> Vec<(usize, Line<'a>)> {
    let short = |name: &'a str| name.strip_suffix(host)?.strip_suffix('@').filter(|name| !name.is_empty());
    let is_of_host = |line: &Line<'a>| matches!(line, Line::User { name, .. } if short(name).is_some());
    // A line of USER alone counts only if none has USER@host, wherever that is.
    lines.sort_by_key(|(_, line)| !is_of_host(line));
    let (mut known, mut counting) = (HashSet::new(), Vec::new());
    for (number, line) in lines {
        let Line::User { name, secret, role } = line else {
            counting.push((number, line));
            continue;
        };
        for name in std::iter::once(name).chain(short(name)).filter(|name| known.insert(*name)) {
            let (secret, role) = (secret.clone(), role.clone());
            counting.push((number, Line::User { name, secret, role }));
        }
    }
    counting
}

/// The number of a user of this machine, if this is a number.
fn uid(name: &str) -> Result<Option<u32>, String> {
    if !name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let is_exact = name == "0" || !name.starts_with('0');
    match name.parse() {
        // The highest one is no user: -1 for system calls.
        Ok(uid) if is_exact && uid < u32::MAX => Ok(Some(uid)),
        _ => Err(format!(
            "{name} is no number of a user: they go from 0 to {}, without zeros before them",
            u32::MAX - 1
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::auth_line;

    fn users(text: &str) -> Users {
        Users::parse(text.as_bytes(), &UserLines::Keyway, None).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// The role after a login; a hashed password is verified here.
    fn role(users: &Users, user: &str, password: &str) -> Option<UserRole> {
        match users.judge(user.as_bytes(), password.as_bytes()) {
            Judgement::Admitted(role) => Some(UserRole::clone(&role)),
            Judgement::Refused => None,
            Judgement::Undecided(check) => check.run().map(|role| UserRole::clone(&role)),
        }
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        let users = users("ann:secret one\r\n\nbob:b\n\r\neve:e:ro");
        assert_eq!(users.users.len(), 3);
        assert_eq!(role(&users, "ann", "secret one"), Some(UserRole::FULL));
        assert_eq!(role(&users, "bob", "b"), Some(UserRole::FULL));
        assert_eq!(role(&users, "eve", "e"), Some(UserRole::new(false, b"")));
        for (user, password) in [
            ("bob", "b:d"),
            ("bob", ""),
            ("ann", "b"),
            ("annsecret", " one"),
            ("", ""),
            ("eve", "e:ro"),
        ] {
            assert_eq!(role(&users, user, password), None, "{user} {password}");
        }
        assert!(matches!(
            Users::parse(b"\n", &UserLines::Keyway, None),
            Err(AuthFileError::Empty)
        ));
    }

    #[test]
    fn a_line_that_may_be_a_mistake_is_refused_with_its_number() {
        for line in [
            "nobody",
            "ann:x:RO",
            "ann:x\r",
            "peer:no such user::ro",
            "peer:00::ro",
            "peer:+0::ro",
            "peer:4294967295::ro",
            "peer:99999999999::ro",
            "cert:a::ro\ncert:a::rw",
            "peer:0::ro\npeer:root::rw",
            "ann:x:ro\nann:x:ro",
            "ann:x:ro\nann:y:rw",
            "ann:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAA\nann:$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAA",
        ] {
            let text = format!("eve:y\n{line}");
            match Users::parse(text.as_bytes(), &UserLines::Keyway, None) {
                Err(AuthFileError::Line(number, _)) => assert_eq!(number, text.split('\n').count(), "{line}"),
                other => panic!("{line}: {:?}", other.err()),
            }
        }
    }

    #[test]
    fn a_file_of_memcached_is_read_by_its_rules_and_then_line_by_line() {
        let lines = UserLines::Memcached { host: "box".to_owned() };
        let hashed = auth_line("eve@box", b"e", false, None).unwrap();
        let text = format!(
            "ann:plain\nann@box:secret:::::::\n# old:old\nbob:b:\nbob:second\ncid@elsewhere:c\nann@box:third\r\n{hashed}\nbox:x\n@box:y\n"
        );
        let users = Users::parse(text.as_bytes(), &lines, None).unwrap_or_else(|error| panic!("{error}"));
        let may = |user: &str, password: &str| role(&users, user, password).is_some();
        for (user, password) in [
            ("ann", "secret"),
            ("ann@box", "secret"),
            ("bob", "b"),
            ("cid@elsewhere", "c"),
            ("eve", "e"),
            ("eve@box", "e"),
            ("box", "x"),
        ] {
            assert!(may(user, password), "{user} {password}");
        }
        for (user, password) in [
            ("ann", "plain"),
            ("ann", "third"),
            ("ann", "secret:"),
            ("ann", "secret:::::::"),
            ("bob", "second"),
            ("bob@box", "b"),
            ("bob", "b:"),
            ("cid", "c"),
            ("# old", "old"),
            ("old", "old"),
            ("", "y"),
        ] {
            assert!(!may(user, password), "{user} {password}");
        }
        let refused = |text: &[u8], lines: &UserLines| matches!(Users::parse(text, lines, None), Err(AuthFileError::Line(2, _)));
        assert!(refused(b"ann:x\nbob:secret:RO:", &lines));
        assert!(
            refused(b"ann:x\nbob@box:secret:::::::", &UserLines::Keyway),
            "a file of Keyway's own"
        );
        assert!(matches!(Users::parse(b"# ann:x", &lines, None), Err(AuthFileError::Empty)));
    }

    #[test]
    fn a_hashed_password_is_verified_once() {
        let line = auth_line("ann", b"secret", true, Some("shop:")).unwrap();
        let users = users(&format!("{line}\nbob:plain"));
        assert_eq!(role(&users, "ann", "wrong"), None);
        let is_undecided = || matches!(users.judge(b"ann", b"secret"), Judgement::Undecided(_));
        assert!(is_undecided());
        assert_eq!(role(&users, "ann", "secret"), Some(UserRole::new(false, b"shop:")));
        assert!(!is_undecided(), "its digest is known");
        assert_eq!(role(&users, "ann", "secret"), Some(UserRole::new(false, b"shop:")));
        assert!(matches!(users.judge(b"ann", b"wrong"), Judgement::Refused));
        assert!(matches!(users.judge(b"bob", b"wrong"), Judgement::Refused));
    }

    #[test]
    fn a_user_may_have_two_passwords_while_they_change() {
        let new = auth_line("ann", b"new", true, None).unwrap();
        let users = users(&format!("ann:old:ro\n{new}"));
        assert_eq!(role(&users, "ann", "old"), Some(UserRole::new(false, b"")));
        assert_eq!(role(&users, "ann", "new"), Some(UserRole::new(false, b"")));
        assert_eq!(role(&users, "ann", "other"), None);
    }

    #[test]
    fn certificates_and_users_of_this_machine_have_roles() {
        let users = users("cert:web server::ro\ncert:spiffe://a/b::rw:prefix=b:\npeer:root::rw\npeer:4242::ro:prefix=x");
        let certificate = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            users.role_of_certificate(&names).map(|role| UserRole::clone(&role))
        };
        assert_eq!(certificate(&["web server"]), Some(UserRole::new(false, b"")));
        assert_eq!(certificate(&["other", "spiffe://a/b"]), Some(UserRole::new(true, b"b:")));
        assert_eq!(
            certificate(&["spiffe://a/b", "web server"]),
            Some(UserRole::new(false, b"")),
            "the first line"
        );
        assert_eq!(certificate(&["web", ""]), None);
        let peer = |uid| users.role_of_peer(uid).map(|role| UserRole::clone(&role));
        assert_eq!(
            (peer(0), peer(4242), peer(1)),
            (Some(UserRole::FULL), Some(UserRole::new(false, b"x")), None)
        );
        // A name that is known need not be looked up again, which the sandbox may forbid.
        let mut before = self::users("peer:root::ro");
        before.peers[0].name = "no such user".to_owned();
        let again = Users::parse(b"peer:no such user::rw", &UserLines::Keyway, Some(&before)).unwrap();
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
            match Users::load(&path, &UserLines::Keyway, None) {
                Ok(_) => assert!(admitted, "{mode:o}"),
                Err(error) => assert!(!admitted && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(FILE_LEN_MAX + 1))
            .unwrap();
        assert!(matches!(
            Users::load(&path, &UserLines::Keyway, None),
            Err(AuthFileError::Large(_))
        ));
        std::fs::remove_file(&path).unwrap();
        // Opening a pipe would wait for a writer.
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for what in [path.as_path(), Path::new("/dev/null"), Path::new("/")] {
            assert!(
                matches!(Users::load(what, &UserLines::Keyway, None), Err(AuthFileError::Kind)),
                "{}",
                what.display()
            );
        }
        std::fs::remove_file(&path).unwrap();
    }
}
