//! Where a get puts a value: at the end of a vector, or in the caller's memory, which it requests when it knows the length.

use crate::memory::Memory;
use crate::verbs::Item;
use std::mem::MaybeUninit;

/// Why a value could not be copied. What was appended of it is garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// it changed during the copy, or it is corrupted
    Changed,
    /// this process has no memory for it
    NoMemory,
}

/// A caller's memory for one item's value.
pub trait Target {
    /// An item was found, and its value needs space. `false`: there is none, and the value is not copied. May be called again if
    /// the item changed meanwhile: then the arguments and bytes of the call before are garbage.
    fn make_room(&mut self, item: &Item) -> bool;

    /// The space that was made last, at least as long as requested.
    fn room(&mut self) -> &mut [MaybeUninit<u8>];
}

/// What a get appends to.
pub(crate) trait Out {
    /// Bytes in it.
    fn len(&self) -> usize;

    /// Cuts it back to this many bytes.
    fn truncate(&mut self, len: usize);

    /// Whether it takes the value of this item, which follows.
    fn make_room(&mut self, item: &Item) -> bool;

    /// Copies region bytes to its end, and returns them as they were copied. There may be more of them than announced.
    fn append(&mut self, memory: &Memory, at: usize, len: usize) -> Result<&[u8], Unread>;
}

impl Out for Vec<u8> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }

    #[inline(always)]
    fn make_room(&mut self, _: &Item) -> bool {
        true
    }

    #[inline(always)]
    fn append(&mut self, memory: &Memory, at: usize, len: usize) -> Result<&[u8], Unread> {
        let start = self.len();
        match memory.append_to(at, len, self) {
            true => Ok(self.get(start..).unwrap_or_default()),
            false => Err(Unread::NoMemory),
        }
    }
}

/// A target, and how much of the value is in it.
pub(crate) struct Placed<'t, T> {
    target: &'t mut T,
    len: usize,
}

impl<'t, T: Target> Placed<'t, T> {
    pub fn new(target: &'t mut T) -> Self {
        Self { target, len: 0 }
    }
}

impl<T: Target> Out for Placed<'_, T> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn truncate(&mut self, len: usize) {
        self.len = len;
    }

    #[inline(always)]
    fn make_room(&mut self, item: &Item) -> bool {
        self.target.make_room(item)
    }

    #[inline(always)]
    fn append(&mut self, memory: &Memory, at: usize, len: usize) -> Result<&[u8], Unread> {
        let room = self.target.room().get_mut(self.len..).and_then(|room| room.get_mut(..len));
        // It has space for the length that the item had before.
        let room = room.ok_or(Unread::Changed)?;
        self.len += len;
        Ok(memory.fill(at, room))
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
        assert!(out.make_room(&item(8)) && !out.make_room(&item(9)));
        assert_eq!(out.append(&memory, 64, 5), Ok(&b"abcde"[..]));
        assert_eq!(out.append(&memory, 69, 4), Err(Unread::Changed));
        assert_eq!(out.append(&memory, 69, 3), Ok(&b"fgh"[..]));
        assert_eq!(out.append(&memory, 69, 1), Err(Unread::Changed));
        out.truncate(0);
        assert_eq!(out.append(&memory, 66, 8), Ok(&b"cdefghij"[..]));
    }
}
