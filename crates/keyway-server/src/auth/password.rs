//! Hashed passwords: Argon2 (RFC 9106) in PHC strings, such as `$argon2id$v=19$m=19456,t=2,p=1$SALT$HASH`.

use std::fmt;

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use ring::rand::{SecureRandom, SystemRandom};

use super::line::{PASSWORD_LEN_MAX, PREFIXES, USER_NAMES, is_prefix_of_role, is_user_name};

/// Most memory that a hash may need, KiB. One hash is computed at a time.
const MEMORY_MAX_KIB: u32 = 64 << 10;
/// Most memory that a hash may go through, KiB: memory times passes. It takes some tenths of a second.
const WORK_MAX_KIB: u64 = 256 << 10;
/// What a hashed password begins with in the file.
const MARK: &[u8] = b"$argon2";

/// A hashed password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hashed(String);

/// Why no line could be made for the authentication file.
#[derive(Debug)]
pub enum HashError {
    /// the user's name is empty, too long, or has a character that a login cannot have
    Name(String),
    /// the password is empty, or too long
    Password(usize),
    /// the key prefix is empty, too long, or has a character that a key cannot have
    Prefix(String),
    /// the system has no random numbers, or no memory
    System(String),
}

impl fmt::Display for HashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "\"{}\" cannot be the name of a user: {USER_NAMES}", name.escape_debug()),
            Self::Password(0) => f.write_str("the password is empty"),
            Self::Password(len) => write!(f, "the password has {len} bytes; a login has room for {PASSWORD_LEN_MAX}"),
            Self::Prefix(prefix) => write!(f, "\"{}\" cannot be a key prefix: {PREFIXES}", prefix.escape_debug()),
            Self::System(why) => write!(f, "no hash: {why}"),
        }
    }
}

impl std::error::Error for HashError {}

/// A line of the authentication file for this user, with a hash of the password.
///
/// # Errors
///
/// [`HashError`]
pub fn auth_line(user: &str, password: &[u8], read_only: bool, prefix: Option<&str>) -> Result<String, HashError> {
    if !is_user_name(user) {
        return Err(HashError::Name(user.to_owned()));
    }
    if password.is_empty() || password.len() > PASSWORD_LEN_MAX {
        return Err(HashError::Password(password.len()));
    }
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix_of_role(prefix)) {
        return Err(HashError::Prefix(prefix.to_owned()));
    }
    let hash = hash(password).map_err(HashError::System)?;
    let access = match (read_only, prefix) {
        (true, _) => ":ro",
        (false, Some(_)) => ":rw",
        (false, None) => "",
    };
    let prefix = prefix.map(|prefix| format!(":prefix={prefix}")).unwrap_or_default();
    Ok(format!("{user}:{hash}{access}{prefix}"))
}

/// 19 MiB and two passes: the least that OWASP recommends for Argon2id.
fn hash(password: &[u8]) -> Result<String, String> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| "the system has no random numbers".to_owned())?;
    let salt = SaltString::encode_b64(&bytes).map_err(|error| error.to_string())?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default());
    let hash = argon2.hash_password(password, &salt).map_err(|error| error.to_string())?;
    Ok(hash.to_string())
}

/// Whether this is meant to be a hashed password.
pub(super) fn is_hashed(secret: &[u8]) -> bool {
    secret.starts_with(MARK)
}

impl Hashed {
    /// Reads a hash from the file. `Err`: why it cannot be used.
    pub(super) fn parse(secret: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(secret).map_err(|_| "the hash is not text".to_owned())?;
        let hash = PasswordHash::new(text).map_err(|error| format!("the hash cannot be read: {error}"))?;
        let params = Params::try_from(&hash).map_err(|error| format!("the hash has parameters that do not work: {error}"))?;
        Algorithm::try_from(hash.algorithm).map_err(|error| format!("the hash is of a kind that is not known: {error}"))?;
        if hash.salt.is_none() || hash.hash.is_none() {
            return Err("the hash has no salt or no value".to_owned());
        }
        let (memory, passes) = (params.m_cost(), params.t_cost());
        if memory > MEMORY_MAX_KIB || u64::from(memory) * u64::from(passes) > WORK_MAX_KIB {
            return Err(format!(
                "the hash needs {memory} KiB and {passes} passes; at most {MEMORY_MAX_KIB} KiB, and {WORK_MAX_KIB} KiB in all passes"
            ));
        }
        Ok(Self(text.to_owned()))
    }

    /// Whether this is the password. Takes long: 20 to 30 ms for a hash that [`auth_line`] made.
    pub(super) fn is(&self, password: &[u8]) -> bool {
        // It was parsed before, so it can be parsed.
        PasswordHash::new(&self.0).is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_hash_of_its_password_and_the_role() {
        let line = auth_line("ann", b"secret", true, Some("shop:")).unwrap();
        let hash = line
            .strip_prefix("ann:")
            .and_then(|rest| rest.strip_suffix(":ro:prefix=shop:"))
            .unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{line}");
        let hashed = Hashed::parse(hash.as_bytes()).unwrap();
        assert!(hashed.is(b"secret") && !hashed.is(b"Secret") && !hashed.is(b""));
        let again = auth_line("ann", b"secret", false, None).unwrap();
        assert_ne!(again.strip_prefix("ann:"), Some(hash), "every hash has a salt of its own");
    }

    #[test]
    fn hashes_of_other_programs_are_taken() {
        // `echo -n secret | argon2 somesalt -id -t 2 -k 256 -p 1 -e`, by the reference program.
        let hash = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$pGAgPgkJ+esPqBoW9JTt6WhwKYDSed0z8JpcGysy3V0";
        let hashed = Hashed::parse(hash.as_bytes()).unwrap();
        assert!(hashed.is(b"secret") && !hashed.is(b"secrets"));
    }

    #[test]
    fn what_takes_too_long_or_is_no_hash_is_refused() {
        let tail = "$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
        let why = |params: &str| Hashed::parse(format!("$argon2id$v=19${params}{tail}").as_bytes()).err();
        assert_eq!(why("m=19456,t=2,p=1"), None);
        assert!(why("m=131072,t=1,p=1").unwrap().contains("131072"));
        assert!(why("m=65536,t=5,p=1").unwrap().contains("5 passes"));
        assert!(Hashed::parse(b"$argon2id$nonsense").is_err());
        assert!(Hashed::parse(b"$argon2id$v=19$m=19456,t=2,p=1").is_err());
    }

    #[test]
    fn a_line_that_could_not_be_read_again_is_not_made() {
        for (user, password, prefix) in [
            ("", "x", None),
            ("a b", "x", None),
            ("a:b", "x", None),
            ("cert", "x", None),
            ("Peer", "x", None),
            ("#ann", "x", None),
            ("ann", "x", Some("shop:ro")),
            ("ann", "", None),
            ("ann", "x", Some("")),
            ("ann", "x", Some("a b")),
        ] {
            assert!(
                auth_line(user, password.as_bytes(), false, prefix).is_err(),
                "{user} {password} {prefix:?}"
            );
        }
        assert!(auth_line("ann", &[b'x'; PASSWORD_LEN_MAX + 1], false, None).is_err());
    }
}
