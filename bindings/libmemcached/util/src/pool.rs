//! Pools: clones of one handle, for threads to borrow.

use crate::{ClientHandle, guard, put, rc};
use keyway_cache::server::PerProcess;
use std::ffi::{c_char, c_int};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long `memcached_pool_pop` waits where it may.
const PATIENCE: Duration = Duration::from_secs(5);

unsafe extern "C" {
    fn memcached(text: *const c_char, length: usize) -> *mut ClientHandle;
    fn memcached_clone(st: *mut ClientHandle, source: *const ClientHandle) -> *mut ClientHandle;
    fn memcached_free(st: *mut ClientHandle);
    fn memcached_behavior_set(st: *mut ClientHandle, behavior: u32, data: u64) -> c_int;
    fn memcached_behavior_get(st: *mut ClientHandle, behavior: u32) -> u64;
}

pub struct memcached_pool_st {
    master: *mut ClientHandle,
    /// the pool made the master, and frees it
    own: bool,
    most: usize,
    /// A forked child begins with its parent's, unless one of the parent's threads was changing them: then with none.
    handles: PerProcess<Handles>,
}

#[derive(Default)]
struct Handles {
    inside: Mutex<Inside>,
    returned: Condvar,
}

#[derive(Default)]
struct Inside {
    free: Vec<*mut ClientHandle>,
    /// handles made, borrowed ones included
    made: usize,
}
// SAFETY: handles are used by the thread that has borrowed them.
unsafe impl Send for Inside {}

impl Handles {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl memcached_pool_st {
    fn handles(&self) -> &Handles {
        self.handles.get_or(|parents| {
            let inside =
                parents.and_then(|parents| parents.inside.try_lock().ok().map(|mut inside| std::mem::take(&mut *inside)));
            Handles {
                inside: Mutex::new(inside.unwrap_or_default()),
                returned: Condvar::new(),
            }
        })
    }

    /// A new clone of the master, with its settings' number.
    fn clone_of_master(&self) -> Option<*mut ClientHandle> {
        // SAFETY: the master lives as long as the pool.
        unsafe {
            let st = memcached_clone(std::ptr::null_mut(), self.master);
            let st = st.as_mut()?;
            st.version = (*self.master).version;
            Some(st)
        }
    }

    fn fetch(&self, patience: Duration) -> Result<*mut ClientHandle, c_int> {
        let until = Instant::now().checked_add(patience);
        let handles = self.handles();
        let mut inside = handles.lock();
        loop {
            if let Some(st) = inside.free.pop() {
                return Ok(st);
            }
            if inside.made < self.most {
                let st = self.clone_of_master().ok_or(rc::MEMORY_ALLOCATION_FAILURE)?;
                inside.made += 1;
                return Ok(st);
            }
            if patience.is_zero() {
                return Err(rc::NOTFOUND);
            }
            let left = until.map_or(patience, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(rc::TIMEOUT);
            }
            inside = handles
                .returned
                .wait_timeout(inside, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Takes a handle back; one whose settings are old is replaced.
    fn release(&self, st: *mut ClientHandle) {
        let handles = self.handles();
        let mut inside = handles.lock();
        // SAFETY: a handle that was borrowed from here, and the master.
        let st = unsafe {
            if (*st).version == (*self.master).version {
                st
            } else {
                self.clone_of_master().inspect(|_| memcached_free(st)).unwrap_or(st)
            }
        };
        inside.free.push(st);
        handles.returned.notify_one();
    }
}

/// # Safety
///
/// A handle.
unsafe fn create(master: *mut ClientHandle, own: bool, initial: u32, most: u32) -> *mut memcached_pool_st {
    if master.is_null() || initial == 0 || most == 0 || initial > most {
        return std::ptr::null_mut();
    }
    let pool = memcached_pool_st {
        master,
        own,
        most: most as usize,
        handles: PerProcess::new(),
    };
    let first: Vec<_> = (0..initial).map_while(|_| pool.clone_of_master()).collect();
    let mut inside = pool.handles().lock();
    inside.made = first.len();
    inside.free = first;
    drop(inside);
    Box::into_raw(Box::new(pool))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_create(master: *mut ClientHandle, initial: u32, most: u32) -> *mut memcached_pool_st {
    // SAFETY: the caller's word.
    guard(std::ptr::null_mut(), || unsafe { create(master, false, initial, most) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool(text: *const c_char, length: usize) -> *mut memcached_pool_st {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the caller's word; the handle is freed where there is no pool for it.
        unsafe {
            let master = memcached(text, length);
            let Some(settings) = master.as_ref() else {
                return std::ptr::null_mut();
            };
            let pool = create(master, true, settings.initial_pool_size, settings.max_pool_size);
            if pool.is_null() {
                memcached_free(master);
            }
            pool
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_destroy(pool: *mut memcached_pool_st) -> *mut ClientHandle {
    guard(std::ptr::null_mut(), || {
        if pool.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: made by `create`, and by the caller's word not destroyed before.
        unsafe {
            let pool = Box::from_raw(pool);
            for st in pool.handles().lock().free.drain(..) {
                memcached_free(st);
            }
            if pool.own {
                memcached_free(pool.master);
                return std::ptr::null_mut();
            }
            pool.master
        }
    })
}

/// # Safety
///
/// The pool is NULL or one; the place is NULL or can be written.
unsafe fn borrow(pool: *const memcached_pool_st, patience: Duration, outcome: *mut c_int) -> *mut ClientHandle {
    guard(std::ptr::null_mut(), || {
        // SAFETY: the caller's word.
        unsafe {
            let Some(pool) = pool.as_ref() else {
                return std::ptr::null_mut();
            };
            let fetched = pool.fetch(patience);
            put(outcome, fetched.err().unwrap_or(rc::SUCCESS));
            fetched.unwrap_or(std::ptr::null_mut())
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_pop(pool: *mut memcached_pool_st, block: bool, outcome: *mut c_int) -> *mut ClientHandle {
    // SAFETY: the caller's word.
    unsafe { borrow(pool, if block { PATIENCE } else { Duration::ZERO }, outcome) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_fetch(
    pool: *mut memcached_pool_st,
    patience: *const libc::timespec,
    outcome: *mut c_int,
) -> *mut ClientHandle {
    // SAFETY: the caller's word.
    unsafe {
        let patience = patience.as_ref().map_or(Duration::ZERO, |time| {
            let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
            Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
        });
        borrow(pool, patience, outcome)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_release(pool: *mut memcached_pool_st, st: *mut ClientHandle) -> c_int {
    guard(rc::IN_PROGRESS, || {
        // SAFETY: the caller's word.
        match unsafe { pool.as_ref() } {
            Some(pool) if !st.is_null() => {
                pool.release(st);
                rc::SUCCESS
            }
            _ => rc::INVALID_ARGUMENTS,
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_push(pool: *mut memcached_pool_st, st: *mut ClientHandle) -> c_int {
    // SAFETY: the caller's word.
    unsafe { memcached_pool_release(pool, st) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_behavior_set(pool: *mut memcached_pool_st, behavior: u32, data: u64) -> c_int {
    guard(rc::IN_PROGRESS, || {
        // SAFETY: the caller's word; the master lives as long as the pool.
        unsafe {
            let Some(pool) = pool.as_ref() else {
                return rc::INVALID_ARGUMENTS;
            };
            let mut inside = pool.handles().lock();
            let code = memcached_behavior_set(pool.master, behavior, data);
            if !rc::succeeded(code) {
                return code;
            }
            (*pool.master).version = (*pool.master).version.wrapping_add(1);
            for st in &mut inside.free {
                if rc::succeeded(memcached_behavior_set(*st, behavior, data)) {
                    (**st).version = (*pool.master).version;
                } else if let Some(new) = pool.clone_of_master() {
                    memcached_free(std::mem::replace(st, new));
                }
            }
            code
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcached_pool_behavior_get(pool: *mut memcached_pool_st, behavior: u32, data: *mut u64) -> c_int {
    guard(rc::IN_PROGRESS, || {
        // SAFETY: the caller's word.
        unsafe {
            let Some(pool) = pool.as_ref() else {
                return rc::INVALID_ARGUMENTS;
            };
            let _inside = pool.handles().lock();
            put(data, memcached_behavior_get(pool.master, behavior));
            rc::SUCCESS
        }
    })
}
