//! The calls that set a handle up, written down as they came. If the handle becomes the real library's, they are made again, in the
//! same order, on a handle of that library. So what it does with them is what it would have done at once.
//!
//! # Safety
//!
//! A call's arguments were valid when it came, and what they pointed to was copied then; pointers that libmemcached itself keeps
//! are kept as they are. Calls are made again on a handle of the real library's, whose functions have the types of its headers.
#![allow(unsafe_code, reason = "calls of C functions; contract above")]

use crate::hash::Kit;
use crate::types::*;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Calls a function of the real library. `None`: there is none.
macro_rules! real {
    ($name:ident($($t:ty),* $(,)?) -> $ret:ty; $($arg:expr),*) => {{
        static REAL: $crate::real::Symbol = $crate::real::Symbol::new(concat!(stringify!($name), "\0"));
        REAL.get().map(|real| {
            let real: unsafe extern "C" fn($($t),*) -> $ret = std::mem::transmute(real);
            real($($arg),*)
        })
    }};
}
pub(crate) use real;

/// What a call sets, besides the behaviours, whose bits have their own numbers.
pub(crate) mod sets {
    /// the hashes, the servers' order, and which server has which keys; two bits, as the order of these calls matters
    pub(crate) const PLACEMENT: u64 = 0b11 << 40;
    /// the list of servers
    pub(crate) const SERVERS: u64 = 1 << 42 | PLACEMENT;
    pub(crate) const USER_DATA: u64 = 1 << 43;
    /// functions of the program that are called when a handle is cloned or freed: only its own handle has them
    pub(crate) const LIFE: u64 = 1 << 44;
    /// the first callback; the others follow it
    const CALLBACK: u64 = 1 << 45;
    pub(crate) const LOGIN: u64 = 0b11 << 55 | BINARY;
    const BINARY: u64 = 1 << BINARY_PROTOCOL | 1 << VERIFY_KEY;
    pub(crate) const ANYTHING: u64 = !LIFE;

    use crate::behavior::*;

    /// What a behaviour sets. Some set others too.
    pub(crate) fn of_behavior(behavior: u32) -> u64 {
        match behavior {
            DISTRIBUTION | KETAMA | KETAMA_WEIGHTED | HASH | KETAMA_HASH | SORT_HOSTS => PLACEMENT,
            USE_UDP => 1 << USE_UDP | 1 << BUFFER_REQUESTS | 1 << NOREPLY,
            BINARY_PROTOCOL => BINARY,
            other => 1 << other.min(39),
        }
    }

    pub(crate) fn of_callback(callback: u32) -> u64 {
        match callback {
            1 => USER_DATA,
            2 | 3 => LIFE | CALLBACK << callback,
            // A delete trigger is refused with some behaviours.
            8 => CALLBACK << 8 | 1 << BUFFER_REQUESTS | 1 << NOREPLY,
            other => CALLBACK << other.min(9),
        }
    }
}

/// The calls that have set a handle up.
#[derive(Clone, Default)]
pub(crate) struct Calls(Vec<Call>);

#[derive(Clone)]
pub(crate) struct Call {
    sets: u64,
    /// equal for equal calls
    key: u64,
    again: Arc<dyn Fn(*mut memcached_st)>,
}

impl Call {
    pub(crate) fn new(sets: u64, key: u64, again: impl Fn(*mut memcached_st) + 'static) -> Self {
        Self {
            sets,
            key,
            again: Arc::new(again),
        }
    }
}

/// The key of a call that clones a handle.
const CLONE: u64 = 1;

/// The key of a call, from the function's name and the arguments.
pub(crate) fn key_of(call: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.hash(&mut hasher);
    hasher.finish()
}

impl Calls {
    /// Writes a call down. Programs that change a handle again and again do not make the list longer and longer: an earlier call
    /// that leaves nothing is forgotten.
    pub(crate) fn write_down(&mut self, call: Call, has_succeeded: bool) {
        // A call that only sets one thing overrides the last one that has set it, and nothing else.
        let last = self.0.iter().rposition(|earlier| earlier.sets & call.sets != 0);
        let overrides = |last: &usize| has_succeeded && call.sets.is_power_of_two() && self.0[*last].sets == call.sets;
        if let Some(last) = last.filter(overrides) {
            self.0.remove(last);
        }
        self.0.push(call);
        // A sequence of calls leads from equal settings to equal ones. When it comes for the third time, each setting that it reads
        // was either made by itself, or by a call before all three: the second and the third do the same. Servers add up.
        let len = self.0.len();
        let repeated = (1..=len / 3).find(|n| {
            let (before, third) = self.0.split_at(len - n);
            let same = |from: usize| before[from..from + n].iter().zip(third).all(|(a, b)| a.key == b.key);
            third.iter().all(|call| call.sets & sets::SERVERS != sets::SERVERS) && same(len - 2 * n) && same(len - 3 * n)
        });
        self.0.truncate(len - repeated.unwrap_or(0));
    }

    /// All servers are removed. Calls that have added some leave only whether the handle has weights.
    pub(crate) fn remove_servers(&mut self, weighted: bool) {
        self.0.retain(|call| call.sets != sets::SERVERS);
        let reset = Call::new(sets::PLACEMENT, key_of(&("reset", weighted)), move |st| {
            // SAFETY: a handle of the real library's.
            unsafe {
                real!(memcached_servers_reset(*mut memcached_st) -> (); st);
                (*st).ketama.weighted = weighted;
            }
        });
        self.write_down(reset, true);
    }

    /// The calls of a clone: it is cloned from a handle that these calls have set up.
    pub(crate) fn of_clone(&self) -> Self {
        let is_life = |call: &Call| call.sets & sets::LIFE != 0;
        // A clone of a clone is the same again.
        if self
            .0
            .split_first()
            .is_some_and(|(first, rest)| first.key == CLONE && rest.iter().all(is_life))
        {
            return self.clone();
        }
        let source = self.clone();
        let clone = Call::new(sets::ANYTHING, CLONE, move |st| {
            // SAFETY: a handle of the real library's, which has no servers yet and is made anew.
            unsafe {
                source.with_twin(
                    |twin| real!(memcached_clone(*mut memcached_st, *const memcached_st) -> *mut memcached_st; st, twin),
                );
            }
        });
        let life = self.0.iter().filter(|call| is_life(call)).cloned();
        Self(std::iter::once(clone).chain(life).collect())
    }

    /// Makes the calls again.
    ///
    /// # Safety
    ///
    /// The handle is the real library's, and new.
    pub(crate) unsafe fn again(&self, st: *mut memcached_st) {
        self.0.iter().for_each(|call| (call.again)(st));
    }

    /// Runs `work` with a handle of the real library's that is set up by these calls. `None`: there is no real library.
    ///
    /// # Safety
    ///
    /// The work keeps nothing of the handle.
    pub(crate) unsafe fn with_twin<R>(&self, work: impl FnOnce(*mut memcached_st) -> R) -> Option<R> {
        let mut memory = MaybeUninit::<memcached_st>::uninit();
        // SAFETY: there is room for a handle, which lives until it is freed here.
        unsafe {
            let twin = real!(memcached_create(*mut memcached_st) -> *mut memcached_st; memory.as_mut_ptr())?;
            let calls = self.0.iter().filter(|call| call.sets & sets::LIFE == 0);
            calls.for_each(|call| (call.again)(twin));
            let done = work(twin);
            real!(memcached_free(*mut memcached_st) -> (); twin);
            Some(done)
        }
    }
}

/// An argument of a call that is made again later.
pub(crate) trait Argument: Copy {
    type Kept: Hash + 'static;
    /// # Safety
    ///
    /// The argument is valid for the call that it was given to.
    unsafe fn keep(self) -> Self::Kept;
    fn again(kept: &Self::Kept) -> Self;
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        impl Argument for $t {
            type Kept = Self;
            unsafe fn keep(self) -> Self {
                self
            }
            fn again(kept: &Self) -> Self {
                *kept
            }
        }
    )*};
}
plain!(u16, u32, u64, usize, *mut c_void, *const c_void);
plain!(Option<MallocFn>, Option<FreeFn>, Option<ReallocFn>, Option<CallocFn>);

impl Argument for *const c_char {
    type Kept = Option<CString>;
    unsafe fn keep(self) -> Option<CString> {
        // SAFETY: guaranteed by the caller: NULL or a C string.
        (!self.is_null()).then(|| unsafe { CStr::from_ptr(self).to_owned() })
    }
    fn again(kept: &Option<CString>) -> Self {
        kept.as_ref().map_or(std::ptr::null(), |text| text.as_ptr())
    }
}

impl Argument for *mut hashkit_st {
    type Kept = Kit;
    unsafe fn keep(self) -> Kit {
        // SAFETY: guaranteed by the caller.
        unsafe { Kit::of(self) }
    }
    fn again(kept: &Kit) -> Self {
        kept.get()
    }
}

/// A list of servers.
pub(crate) struct List(Vec<memcached_server_st>);

impl Hash for List {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
    }
}

impl Argument for *mut memcached_server_st {
    type Kept = List;
    unsafe fn keep(self) -> List {
        // SAFETY: guaranteed by the caller: NULL, or as many entries as the first one says.
        unsafe {
            let count = self.as_ref().map_or(0, |first| first.number_of_hosts as usize);
            List((0..count).map(|index| self.add(index).read()).collect())
        }
    }
    fn again(kept: &List) -> Self {
        match kept.0.as_slice() {
            [] => std::ptr::null_mut(),
            list => list.as_ptr().cast_mut(),
        }
    }
}

/// Whether a call has done what it was to do.
pub(crate) trait Outcome {
    fn is_success(&self) -> bool;
}
impl Outcome for c_int {
    fn is_success(&self) -> bool {
        *self == rc::SUCCESS
    }
}
impl Outcome for *mut c_void {
    fn is_success(&self) -> bool {
        true
    }
}
impl Outcome for () {
    fn is_success(&self) -> bool {
        true
    }
}

/// Functions of a handle that set it up: [`handle_functions`](crate::export::handle_functions), written down. The expression after
/// `sets` says what the call sets. A body that returns by `return` is not written down.
macro_rules! setup_functions {
    ($($(#[$meta:meta])* fn $name:ident($ptr:ident: $ty:ty $(, $arg:ident: $t:ty)* $(,)?) -> $ret:ty = $absent:expr, sets $sets:expr; $body:expr)*) => {
        $crate::export::handle_functions! {$(
            $(#[$meta])*
            fn $name($ptr: $ty $(, $arg: $t)*) -> $ret = $absent; {
                let done: $ret = $body;
                if let Some(handle) = $crate::handle::ours($ptr) {
                    $(let $arg = <$t as $crate::setup::Argument>::keep($arg);)*
                    let key = $crate::setup::key_of(&(stringify!($name) $(, &$arg)*));
                    let call = $crate::setup::Call::new($sets, key, move |st| {
                        // SAFETY: as `setup.rs` says.
                        unsafe {
                            $crate::setup::real!($name($ty $(, $t)*) -> $ret; st $(, <$t as $crate::setup::Argument>::again(&$arg))*);
                        }
                    });
                    handle.calls.write_down(call, $crate::setup::Outcome::is_success(&done));
                }
                Some(done)
            }
        )*}
    };
}
pub(crate) use setup_functions;

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes such calls down, and returns how long the list is then.
    fn written(calls: &mut Calls, calls_made: &[(u64, u64)]) -> usize {
        for (sets, key) in calls_made {
            calls.write_down(Call::new(*sets, *key, |_| ()), true);
        }
        calls.0.len()
    }

    #[test]
    fn calls_that_come_again_and_again_do_not_make_the_list_longer() {
        let toggles = |on: u64| {
            [
                (sets::of_behavior(7), on),
                (sets::of_behavior(26), on),
                (sets::of_callback(0), on * 3),
            ]
        };
        let rounds: [Vec<(u64, u64)>; 4] = [
            [toggles(0), toggles(1)].concat(),
            // What a program sets at each request, and the order of which matters.
            vec![(sets::PLACEMENT, 1), (sets::PLACEMENT, 2), (sets::LOGIN, 3)],
            vec![(sets::of_behavior(18), 0), (sets::of_behavior(27), 1), (sets::PLACEMENT, 2)],
            vec![
                (sets::of_callback(8), 1),
                (sets::of_behavior(10), 0),
                (sets::of_behavior(10), 1),
            ],
        ];
        for round in rounds {
            let mut calls = Calls::default();
            let longest = (0..100).map(|_| written(&mut calls, &round)).max();
            assert!(longest <= Some(3 * round.len()), "{round:?}: {longest:?}");
        }
        let mut calls = Calls::default();
        for _ in 0..100 {
            written(&mut calls, &[(sets::SERVERS, 1), (sets::SERVERS, 1), (sets::PLACEMENT, 2)]);
            calls.remove_servers(true);
        }
        assert!(calls.0.len() < 10, "{}", calls.0.len());
        let clone = calls.of_clone();
        let again = (0..100_000).fold(clone, |clone, _| clone.of_clone());
        assert_eq!(again.0.len(), 1);
    }

    #[test]
    fn calls_that_still_count_stay() {
        let mut calls = Calls::default();
        assert_eq!(written(&mut calls, &[(sets::SERVERS, 1); 5]), 5, "servers add up");
        calls.write_down(Call::new(sets::of_behavior(21), 5, |_| ()), true);
        calls.write_down(Call::new(sets::of_behavior(21), 0, |_| ()), false);
        assert_eq!(calls.0.len(), 7, "a call that has failed overrides nothing");
    }
}
