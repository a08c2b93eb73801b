//! A region in private memory with no other process in it.
//!
//! # Safety
//!
//! The only `unsafe` is the mapping: a vector of pages plays it, lives as long as the region made from it (the user of [`region`]
//! keeps the pages until then), and is used by no other thread meanwhile.
#![allow(unsafe_code, reason = "private memory plays the mapping; contract above")]

use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::session::Tenant;
use keyway_region::memory::Memory;
use keyway_region::{Creation, Host, Life, Limits, Process, Region, Session};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// When it was made.
pub const UNIX_S: i64 = 1_800_000_000;

struct Alone {
    len: usize,
    /// what it takes its tenants for
    life: Life,
}

impl Host for Alone {
    fn life(&self, _: &Tenant) -> Life {
        self.life
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        self.len
    }
    fn back(&self, _: Range<usize>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

/// The memory.
#[derive(Clone)]
#[repr(C, align(4096))]
pub struct Page([u64; 512]);

/// What stands at an address of the memory now.
#[allow(dead_code, reason = "not every test asks")]
pub fn bytes_at(pages: &[Page], address: *const u8, len: usize) -> Vec<u8> {
    let from = address.addr() - pages.as_ptr().addr();
    let bytes = pages.iter().flat_map(|page| page.0).flat_map(u64::to_le_bytes);
    bytes.skip(from).take(len).collect()
}

/// The words of the memory.
#[allow(dead_code, reason = "not every test asks")]
pub fn words(pages: &mut [Page]) -> impl Iterator<Item = &mut u64> {
    pages.iter_mut().flat_map(|page| &mut page.0)
}

/// The memory, which goes last, and in it a region of so many bytes. It cannot grow: the address space is real memory here.
#[allow(dead_code, reason = "not every test asks")]
pub fn region(memory: u64) -> (Vec<Page>, Arc<Region>) {
    region_where(memory, Life::Alive)
}

/// The same where every process is taken for this.
#[allow(dead_code, reason = "not every test asks")]
pub fn region_where(memory: u64, life: Life) -> (Vec<Page>, Arc<Region>) {
    region_of(memory, 0, |_, len| Box::new(Alone { len, life }))
}

/// The same with a host of the test's own, which is told where the memory is, and how much of it is backed; and with so many segments fewer
/// than the region may have.
pub fn region_of(memory: u64, spare: usize, host: impl FnOnce(NonNull<u8>, usize) -> Box<dyn Host>) -> (Vec<Page>, Arc<Region>) {
    let mut shape = Shape::for_memory(memory, 4096);
    shape.segments_max = Layout::new(shape).segments_for(memory);
    let layout = Layout::new(shape);
    let segments = layout.segments_for(memory) - spare;
    let mut pages = vec![Page([0; 512]); layout.len_max / 4096 + 1];
    let base: NonNull<u8> = NonNull::new(pages.as_mut_ptr().cast()).expect("a vector's pointer");
    let creation = Creation {
        shape,
        segments,
        id: [1, 2],
        seed: 3,
        now: keyway_region::Moment::from_secs(UNIX_S),
        boot_id: [4, 5],
        checksums: false,
        limits: Limits::default(),
    };
    let host = host(base, layout.len(segments));
    // SAFETY: see the top of the file.
    let mapped = unsafe { Memory::new(base, pages.len() * 4096) };
    let region = Region::create(mapped, &creation, host).expect("memory of the right size");
    (pages, Arc::new(region))
}

/// The region's first session, of a process that attaches for it.
#[allow(dead_code, reason = "not every test asks")]
pub fn session(region: &Arc<Region>) -> Session {
    region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    });
    region
        .session(Process { slot: 0, incarnation: 1 })
        .expect("the first session")
}
