//! The size of the system's pages: 4 KiB on x86-64; 4, 16 or 64 KiB on arm64, as its kernel was built.

use nix::unistd::{SysconfVar, sysconf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The smallest page of any system, bytes.
const LEAST: usize = 4096;

/// Bytes of a page of this system, a power of two.
pub fn page_size() -> usize {
    /// 0: not asked yet. PAIRS: nothing; all threads get the same answer.
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    match SIZE.load(Relaxed) {
        0 => {
            let asked = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
            let size = asked.and_then(|size| usize::try_from(size).ok());
            let size = size.filter(|size| size.is_power_of_two()).unwrap_or(LEAST).max(LEAST);
            SIZE.store(size, Relaxed);
            size
        }
        size => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_size_that_the_kernel_tells_every_process() {
        // AT_PAGESZ (getauxval(3)), pairs of words.
        let auxv = std::fs::read("/proc/self/auxv").unwrap();
        let words: Vec<_> = auxv
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        let told = words.chunks_exact(2).find(|pair| pair[0] == 6).map(|pair| pair[1]);
        assert_eq!(Some(page_size() as u64), told);
    }
}
