//! From results to codes: every failure has a code, and a message until this thread's next failure. No panic leaves the
//! library.

use crate::types::keyway_result::{self, *};
use keyway_cache::{LocalError, OpenError, SessionError, WriteError};
use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// This thread's last failure.
struct Last {
    code: keyway_result,
    message: CString,
}

impl Default for Last {
    fn default() -> Self {
        Self {
            code: KEYWAY_OK,
            message: CString::default(),
        }
    }
}

/// Why a call failed. Boxed, because what succeeds carries room for it from one function to the next.
#[derive(Debug)]
pub(crate) struct Failure(Box<Why>);

#[derive(Debug)]
struct Why {
    code: keyway_result,
    message: Cow<'static, str>,
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: keyway_result, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        Self(Box::new(Why { code, message }))
    }

    pub(crate) fn code(&self) -> keyway_result {
        self.0.code
    }

    pub(crate) fn argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(KEYWAY_ERROR_ARGUMENT, message)
    }

    /// Keeps the message for [`last`].
    #[cold]
    pub(crate) fn remember(self) -> keyway_result {
        let bytes: Vec<u8> = self.0.message.bytes().filter(|byte| *byte != 0).collect();
        let new = Last {
            code: self.code(),
            message: CString::new(bytes).unwrap_or_default(),
        };
        // A thread that is ending has no thread-local storage any more: then the code must be enough.
        let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = new));
        self.code()
    }
}

/// The message of this thread's last failure, or an empty one. It stays until the next failure.
pub(crate) fn last() -> *const c_char {
    LAST.try_with(|last| last.try_borrow().map(|last| last.message.as_ptr()))
        .map_or(None, Result::ok)
        .unwrap_or(c"".as_ptr())
}

/// The code of this thread's last failure.
pub(crate) fn last_code() -> keyway_result {
    LAST.try_with(|last| last.try_borrow().map(|last| last.code))
        .map_or(None, Result::ok)
        .unwrap_or(KEYWAY_OK)
}

/// Runs a call's work: what comes out is a code, also of a panic.
#[inline]
pub(crate) fn boundary(work: impl FnOnce() -> Result<keyway_result, Failure>) -> keyway_result {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(result)) => result,
        Ok(Err(failure)) => failure.remember(),
        Err(payload) => {
            keyway_cache::server::close_after_panic();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let text = text.unwrap_or("no message");
            let message = format!("a bug in Keyway: {text}; the region is intact; please report it");
            Failure::new(KEYWAY_ERROR_BUG, message).remember()
        }
    }
}

/// The name of a code.
pub(crate) fn name(code: i32) -> &'static CStr {
    macro_rules! names {
        ($($code:ident)*) => {
            match code {
                $(code if code == keyway_result::$code as i32 => {
                    const { match CStr::from_bytes_with_nul(concat!(stringify!($code), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zero byte"),
                    } }
                })*
                _ => c"unknown",
            }
        };
    }
    names!(
        KEYWAY_OK KEYWAY_NOT_FOUND KEYWAY_NOT_STORED KEYWAY_EXISTS KEYWAY_STALE KEYWAY_COMPUTE KEYWAY_IN_FLIGHT KEYWAY_LIMITED
        KEYWAY_ERROR_ARGUMENT KEYWAY_ERROR_KEY_LENGTH KEYWAY_ERROR_TOO_LARGE KEYWAY_ERROR_BUFFER_TOO_SMALL KEYWAY_ERROR_NOT_A_NUMBER KEYWAY_ERROR_OUT_OF_MEMORY
        KEYWAY_ERROR_ABSENT KEYWAY_ERROR_UNUSABLE KEYWAY_ERROR_NO_SPACE KEYWAY_ERROR_FULL KEYWAY_ERROR_BUSY
        KEYWAY_ERROR_DAMAGED KEYWAY_ERROR_SYSTEM KEYWAY_ERROR_REFUSED KEYWAY_ERROR_BUG
    )
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        let code = match error {
            WriteError::KeyLength { .. } => KEYWAY_ERROR_KEY_LENGTH,
            WriteError::TooLarge { .. } => KEYWAY_ERROR_TOO_LARGE,
            WriteError::OutOfMemory | WriteError::NoMemory { .. } => KEYWAY_ERROR_OUT_OF_MEMORY,
            WriteError::Corrupt => KEYWAY_ERROR_DAMAGED,
            WriteError::Detached | WriteError::Unserved => KEYWAY_ERROR_ABSENT,
            WriteError::OwnFlight => KEYWAY_ERROR_BUSY,
            WriteError::KernelDoor | WriteError::FlushRefused => KEYWAY_ERROR_REFUSED,
            _ => KEYWAY_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<LocalError> for Failure {
    fn from(error: LocalError) -> Self {
        match error {
            LocalError::Session(error) => error.into(),
            LocalError::Open(error) => (*error).into(),
            other => Self::new(KEYWAY_ERROR_SYSTEM, other.to_string()),
        }
    }
}

impl From<SessionError> for Failure {
    fn from(error: SessionError) -> Self {
        let code = match error {
            SessionError::TableFull { .. } => KEYWAY_ERROR_FULL,
            SessionError::Busy => KEYWAY_ERROR_BUSY,
            SessionError::Forked => KEYWAY_ERROR_ABSENT,
            _ => KEYWAY_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let code = match error {
            OpenError::NoSpace { .. }
            | OpenError::NotGrown { .. }
            | OpenError::OverLimit { .. }
            | OpenError::CopiesOnWrite { .. } => KEYWAY_ERROR_NO_SPACE,
            OpenError::Unusable { .. }
            | OpenError::NotAFile { .. }
            | OpenError::NotAnonymous { .. }
            | OpenError::NotDurable { .. }
            | OpenError::NotChecksummed { .. } => KEYWAY_ERROR_UNUSABLE,
            OpenError::Absent { .. } | OpenError::NoServer { .. } | OpenError::Forked => KEYWAY_ERROR_ABSENT,
            OpenError::NotHandedOut { .. }
            | OpenError::KeptOut { .. }
            | OpenError::AnotherUsers { .. }
            | OpenError::Linked { .. }
            | OpenError::WritableByAll { .. } => KEYWAY_ERROR_REFUSED,
            OpenError::Memory { .. }
            | OpenError::ItemSize { .. }
            | OpenError::Sessions { .. }
            | OpenError::ServerSessions { .. }
            | OpenError::Mode { .. }
            | OpenError::Address { .. } => KEYWAY_ERROR_ARGUMENT,
            OpenError::ProcessesFull { .. } => KEYWAY_ERROR_FULL,
            OpenError::Busy { .. } => KEYWAY_ERROR_BUSY,
            // A system call that failed, a time namespace that is unknown, and what a later version of the library adds.
            _ => KEYWAY_ERROR_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: `last` returns a C string that lives until this thread's next failure.
        unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_message() {
        assert_eq!(boundary(|| panic!("with {}", 42)), KEYWAY_ERROR_BUG);
        assert!(message().contains("with 42"), "{}", message());
        assert_eq!(boundary(|| panic!("plain")), KEYWAY_ERROR_BUG);
        assert!(message().contains("plain"), "{}", message());
    }

    #[test]
    fn a_message_is_the_threads_own_and_stays_until_the_next_failure() {
        assert_eq!(message(), "");
        let fail = |text: &'static str| boundary(|| Err(Failure::argument(text)));
        assert_eq!(fail("first"), KEYWAY_ERROR_ARGUMENT);
        assert_eq!(boundary(|| Ok(KEYWAY_OK)), KEYWAY_OK);
        std::thread::scope(|scope| drop(scope.spawn(|| fail("elsewhere"))));
        assert_eq!(message(), "first");
        fail("zero\0byte");
        assert_eq!(message(), "zerobyte");
    }

    #[test]
    fn codes_have_their_names() {
        assert_eq!(name(0), c"KEYWAY_OK");
        assert_eq!(name(KEYWAY_ERROR_BUG as i32), c"KEYWAY_ERROR_BUG");
        assert_eq!(name(8), c"unknown");
    }
}
