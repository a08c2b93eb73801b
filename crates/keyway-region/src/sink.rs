//! Where a get puts a value ([`Sink`]): at the end of a vector, there after a head that belongs before the value ([`Headed`]), in
//! the caller's memory, which is requested when the length is known ([`Placed`]), or in no memory at all, because the caller
//! takes the value in its place ([`Pinning`]).

use crate::heap;
use crate::memory::{Memory, Window, fill_bytes};
use crate::verbs::Item;
use std::mem::MaybeUninit;

/// A value borrowed in place, for the length of a call: its segment is not recycled meanwhile.
pub struct PinnedValue<'r> {
    pub(crate) memory: &'r Memory,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl PinnedValue<'_> {
    /// Where it begins, for the kernel to read [`Self::len`] bytes. A write there by another process, against the protocol,
    /// makes the bytes wrong and does no other harm.
    pub fn address(&self) -> *const u8 {
        self.memory.address(self.at, self.len)
    }

    /// Its length, bytes.
    #[allow(clippy::len_without_is_empty, reason = "what is lent is long")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies it, without its first bytes, to the end of `out`.
    pub fn append_from(&self, first: usize, out: &mut Vec<u8>) {
        let first = first.min(self.len);
        let rest = self.len - first;
        heap::reserve(out, rest);
        let has_room = self.memory.append_to(self.at + first, rest, out);
        debug_assert!(has_room, "it was reserved");
    }
}

/// Why a value could not be copied. What was appended of it is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// it changed during the copy, or it is corrupted
    Changed,
    /// this process has no memory for it
    NoMemory,
}

/// A caller's memory for one item's value.
pub trait Target {
    /// The places that the other two methods and the value may write to, if these methods call no code and use no memory beside it; so
    /// they may run while the region is accessible. `None`: they run when it is not, and the value is copied once more.
    #[inline(always)]
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        None
    }

    /// An item was found, and its value needs space. `false`: there is none, and the value is not copied. May be called again if
    /// the item changed meanwhile: then the arguments and bytes of the call before are garbage.
    fn make_room(&mut self, item: &Item) -> bool;

    /// The space that was made last, at least as long as requested.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];
}

/// Bytes of a value that are summed together.
pub(crate) const CHUNK: usize = 512;

/// Where a get puts what it finds. If the item changes meanwhile, the sink is cut back to its length before, and begins again.
#[allow(clippy::len_without_is_empty, reason = "a length is compared with an earlier one only")]
pub trait Sink {
    /// Its memory is the caller's and no vector: a get that changes its item does not write to it before the change is done.
    const IS_FOREIGN: bool;
    /// It may take a value in its place: [`Self::pin`] is called for values longer than [`crate::verbs::Get::at_most`].
    const PINS: bool = false;

    /// The places in a caller's memory that the sink writes to ([`Target::reach`]); vectors of Rust are not among them.
    #[inline(always)]
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        None
    }

    /// Bytes in it.
    fn len(&self) -> usize;

    /// Cuts it back to this many bytes.
    fn truncate(&mut self, len: usize);

    /// Takes an item, whose value follows. `false`: it has no space for the value.
    fn begin(&mut self, item: &Item) -> bool;

    /// Copies region bytes to its end. There may be more of them than announced.
    ///
    /// # Errors
    ///
    /// There is no space for them, because they are more than announced, or no memory.
    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread>;

    /// Copies region bytes to its end, and continues a CRC-32C over them. A caller's memory may change at any time, so the
    /// checksum is of a copy in this function's own memory, from which the sink gets the bytes.
    ///
    /// # Errors
    ///
    /// There is no space for the bytes, because they are more than announced, or no memory.
    fn append_summed(&mut self, bytes: Window<'_>, mut sum: u32) -> Result<u32, Unread> {
        let mut chunk = [MaybeUninit::uninit(); CHUNK];
        for from in (0..bytes.len()).step_by(CHUNK) {
            let part = bytes.part(from).fill(&mut chunk);
            sum = crc32c::crc32c_append(sum, part);
            self.append_bytes(part)?;
        }
        Ok(sum)
    }

    /// Copies the whole value, right after [`Self::begin`] of its item. A caller's memory counts as empty after it, too.
    ///
    /// # Errors
    ///
    /// There is no space for the value, because it is longer than announced, or no memory.
    #[inline(always)]
    fn put_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        self.append_region(bytes)
    }

    /// Copies bytes of this process to its end.
    ///
    /// # Errors
    ///
    /// There is no space for the bytes, because they are more than announced, or no memory.
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread>;

    /// Takes the value in its place.
    fn pin(&mut self, _: &PinnedValue<'_>) {}
}

impl Sink for Vec<u8> {
    const IS_FOREIGN: bool = false;

    #[inline(always)]
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        Some([&[]; 2])
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }

    #[inline(always)]
    fn begin(&mut self, _: &Item) -> bool {
        true
    }

    #[inline(always)]
    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        match bytes.append_to(self) {
            true => Ok(()),
            false => Err(Unread::NoMemory),
        }
    }

    /// A vector is no other code's, so the bytes are summed where they are.
    fn append_summed(&mut self, bytes: Window<'_>, sum: u32) -> Result<u32, Unread> {
        let start = self.len();
        self.append_region(bytes)?;
        Ok(crc32c::crc32c_append(sum, self.get(start..).unwrap_or_default()))
    }

    #[inline(always)]
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        if !heap::try_reserve(self, bytes.len()) {
            return Err(Unread::NoMemory);
        }
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// No place: for what is read only to be summed.
pub(crate) struct Nowhere;

impl Sink for Nowhere {
    const IS_FOREIGN: bool = false;

    fn len(&self) -> usize {
        0
    }

    fn truncate(&mut self, _: usize) {}

    fn begin(&mut self, _: &Item) -> bool {
        true
    }

    fn append_region(&mut self, _: Window<'_>) -> Result<(), Unread> {
        Ok(())
    }

    fn append_bytes(&mut self, _: &[u8]) -> Result<(), Unread> {
        Ok(())
    }
}

/// A vector, to which `head` appends what belongs before the value.
pub struct Headed<'o, H> {
    out: &'o mut Vec<u8>,
    head: H,
}

impl<'o, H: FnMut(&Item, &mut Vec<u8>)> Headed<'o, H> {
    /// The vector `out`. `head` may run again after `out` was cut back.
    pub fn new(out: &'o mut Vec<u8>, head: H) -> Self {
        Self { out, head }
    }
}

impl<H: FnMut(&Item, &mut Vec<u8>)> Sink for Headed<'_, H> {
    const IS_FOREIGN: bool = false;

    #[inline(always)]
    fn len(&self) -> usize {
        self.out.len()
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    #[inline(always)]
    fn begin(&mut self, item: &Item) -> bool {
        (self.head)(item, self.out);
        true
    }

    #[inline(always)]
    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        self.out.append_region(bytes)
    }

    fn append_summed(&mut self, bytes: Window<'_>, sum: u32) -> Result<u32, Unread> {
        self.out.append_summed(bytes, sum)
    }

    #[inline(always)]
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        self.out.append_bytes(bytes)
    }
}

/// A vector that takes a head and the value after it, as [`Headed`]; a value that is too long to be copied is pinned, and `pin`
/// gets it in its place.
pub struct Pinning<'o, H, L> {
    inner: Headed<'o, H>,
    pin: L,
}

impl<'o, H: FnMut(&Item, &mut Vec<u8>), L: FnMut(&PinnedValue<'_>, &mut Vec<u8>)> Pinning<'o, H, L> {
    /// The vector `out`, which `pin` gets after `head`.
    pub fn new(out: &'o mut Vec<u8>, head: H, pin: L) -> Self {
        Self {
            inner: Headed::new(out, head),
            pin,
        }
    }
}

impl<H: FnMut(&Item, &mut Vec<u8>), L: FnMut(&PinnedValue<'_>, &mut Vec<u8>)> Sink for Pinning<'_, H, L> {
    const IS_FOREIGN: bool = false;
    const PINS: bool = true;

    #[inline(always)]
    fn len(&self) -> usize {
        self.inner.len()
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.inner.truncate(len);
    }

    #[inline(always)]
    fn begin(&mut self, item: &Item) -> bool {
        self.inner.begin(item)
    }

    #[inline(always)]
    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        self.inner.append_region(bytes)
    }

    fn append_summed(&mut self, bytes: Window<'_>, sum: u32) -> Result<u32, Unread> {
        self.inner.append_summed(bytes, sum)
    }

    #[inline(always)]
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        self.inner.append_bytes(bytes)
    }

    #[inline(always)]
    fn pin(&mut self, value: &PinnedValue<'_>) {
        (self.pin)(value, self.inner.out);
    }
}

/// A target, and how much of the value is in it.
pub struct Placed<'t, T> {
    target: &'t mut T,
    len: usize,
}

impl<'t, T: Target> Placed<'t, T> {
    /// The target's memory.
    pub fn new(target: &'t mut T) -> Self {
        Self { target, len: 0 }
    }

    /// The next bytes of the space that was made. It has space for the length that the item had before.
    #[inline(always)]
    fn room(&mut self, len: usize) -> Result<&mut [MaybeUninit<u8>], Unread> {
        let room = self.target.room().get_mut(self.len..).and_then(|room| room.get_mut(..len));
        let room = room.ok_or(Unread::Changed)?;
        self.len += len;
        Ok(room)
    }
}

impl<T: Target> Sink for Placed<'_, T> {
    const IS_FOREIGN: bool = true;

    #[inline(always)]
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        self.target.reach()
    }

    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.len = len;
    }

    #[inline(always)]
    fn begin(&mut self, item: &Item) -> bool {
        self.target.make_room(item)
    }

    #[inline(always)]
    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        bytes.fill(self.room(bytes.len())?);
        Ok(())
    }

    #[inline(always)]
    fn put_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        let room = self.target.room().get_mut(..bytes.len()).ok_or(Unread::Changed)?;
        bytes.fill(room);
        Ok(())
    }

    #[inline(always)]
    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        fill_bytes(bytes, self.room(bytes.len())?);
        Ok(())
    }
}

/// A sink of other code during a get: it takes one item. Its code may change that item itself, each time that it runs; so if the item
/// changes meanwhile, the sink takes no other one ([`Self::is_passed_over`]), and the caller begins again in another way.
pub struct Once<'s, S> {
    sink: &'s mut S,
    begun: u32,
}

impl<'s, S: Sink> Once<'s, S> {
    /// For this sink, which has not begun.
    pub fn new(sink: &'s mut S) -> Self {
        Self { sink, begun: 0 }
    }

    /// Whether an item was found again after the sink had taken one: what the sink has is not what the get has returned.
    pub fn is_passed_over(&self) -> bool {
        self.begun > 1
    }
}

impl<S: Sink> Sink for Once<'_, S> {
    const IS_FOREIGN: bool = S::IS_FOREIGN;

    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        self.sink.reach()
    }

    fn len(&self) -> usize {
        self.sink.len()
    }

    fn truncate(&mut self, len: usize) {
        self.sink.truncate(len);
    }

    fn begin(&mut self, item: &Item) -> bool {
        self.begun = self.begun.saturating_add(1);
        self.begun == 1 && self.sink.begin(item)
    }

    fn append_region(&mut self, bytes: Window<'_>) -> Result<(), Unread> {
        self.sink.append_region(bytes)
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> Result<(), Unread> {
        self.sink.append_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::Page;

    struct Buffer([MaybeUninit<u8>; 8]);

    impl Target for Buffer {
        fn make_room(&mut self, item: &Item) -> bool {
            item.value_len <= self.0.len()
        }

        fn room(&mut self) -> &mut [MaybeUninit<u8>] {
            &mut self.0
        }
    }

    #[test]
    fn what_is_longer_than_was_said_is_not_copied() {
        let mut page = Page::new();
        let memory = page.memory();
        memory.write(64, b"abcdefghij");
        let mut buffer = Buffer([MaybeUninit::new(0); 8]);
        let mut out = Placed::new(&mut buffer);
        let item = |value_len| Item {
            value_len,
            ..Item::default()
        };
        assert!(out.begin(&item(8)) && !out.begin(&item(9)));
        assert_eq!(out.append_region(memory.window(64, 5)), Ok(()));
        assert_eq!(out.append_region(memory.window(69, 4)), Err(Unread::Changed));
        assert_eq!(out.append_summed(memory.window(69, 3), 0), Ok(crc32c::crc32c(b"fgh")));
        assert_eq!(out.append_region(memory.window(69, 1)), Err(Unread::Changed));
        out.truncate(0);
        assert_eq!(out.append_region(memory.window(66, 8)), Ok(()));
        assert_eq!(out.append_bytes(b"x"), Err(Unread::Changed));
        out.truncate(6);
        assert_eq!(
            (out.append_bytes(b"xyz"), out.append_bytes(b"xy")),
            (Err(Unread::Changed), Ok(()))
        );
    }
}
