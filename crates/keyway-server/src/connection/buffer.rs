//! A connection's input buffer: bytes that have arrived and are not consumed yet.
//!
//! It is one vector with two marks. It grows only as bytes arrive (never because of a length that a client announces), and an empty one
//! holds no memory, so that idle connections cost nothing.

use std::io::{self, Read};

/// Least space for a read, bytes: with less, pipelined requests would need more system calls.
const READ_ROOM_MIN: usize = 16 * 1024;
/// With less space than this, the buffer makes more, bytes.
const READ_ROOM_SHORT: usize = 4 * 1024;
/// A buffer that is larger than the worker's has a multiple of this size, bytes, so that it can be used for other large requests too.
const LARGE_UNIT: usize = 16 * 1024;
/// Most bytes of one read, so that a large value arrives in steps, and other connections are served between them.
const READ_MAX: usize = 256 * 1024;

/// Bytes between `start` and `end` of `bytes` have arrived and wait; those after `end` are free.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// A buffer with room for `size` bytes.
    pub(super) fn with_size(size: usize) -> Self {
        Self {
            bytes: vec![0; size],
            start: 0,
            end: 0,
        }
    }

    /// A buffer that holds exactly `data`.
    pub(super) fn copy_of(data: &[u8]) -> Self {
        Self {
            bytes: data.to_vec(),
            start: 0,
            end: data.len(),
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Memory held, bytes.
    pub(super) fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Drops the first `count` waiting bytes.
    pub(super) fn consume(&mut self, count: usize) {
        self.start += count.min(self.len());
        if self.is_empty() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// The size of the buffer that should replace this one before `more` bytes arrive, if this one is too small. It at most doubles at a
    /// time (from [`READ_ROOM_MIN`]), so a client has to send half of what it makes the server hold, and every byte is moved about once.
    pub(super) fn size_wanted(&self, more: usize, need: usize) -> Option<usize> {
        let need = need.max(self.len() + more);
        if need <= self.bytes.len() {
            return None;
        }
        let wanted = (need - self.len()).max(READ_ROOM_MIN);
        let size = self.len() + wanted.min(self.len().max(READ_ROOM_MIN)).max(more);
        (size > self.bytes.len()).then(|| size.next_multiple_of(LARGE_UNIT))
    }

    /// Reads `source` once, at most `most` bytes, into the free space, after making more if needed. `need` is how many bytes should wait here
    /// in the end.
    ///
    /// Returns the bytes read and whether they filled the free space; if they did, the source may hold more.
    pub(super) fn fill(&mut self, source: &mut impl Read, need: usize, most: usize) -> io::Result<(usize, bool)> {
        self.make_room(need);
        let offered = (self.bytes.len() - self.end).min(READ_MAX).min(most);
        let count = source.read(&mut self.bytes[self.end..self.end + offered])?;
        self.end += count;
        Ok((count, count == offered))
    }

    /// Appends `bytes` that did not come through [`Self::fill`].
    pub(super) fn append(&mut self, bytes: &[u8], need: usize) {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.make_room(need.max(self.len() + rest.len()));
            let count = rest.len().min(self.bytes.len() - self.end);
            let (now, later) = rest.split_at(count);
            self.bytes[self.end..self.end + count].copy_from_slice(now);
            self.end += count;
            rest = later;
        }
    }

    /// Makes space after `end` when there is little: by moving the waiting bytes to the front, then by growing.
    fn make_room(&mut self, need: usize) {
        let wanted = need.saturating_sub(self.len()).max(1);
        let room = self.bytes.len() - self.end;
        if room >= wanted.min(READ_ROOM_SHORT) {
            return;
        }
        match self.size_wanted(wanted.min(READ_ROOM_SHORT), need) {
            Some(size) => {
                // The kernel has not allocated the pages of a new zeroed vector yet; extending the old vector would write all of it.
                let mut bytes = vec![0; size];
                bytes[..self.len()].copy_from_slice(self.data());
                self.bytes = bytes;
            }
            None => self.bytes.copy_within(self.start..self.end, 0),
        }
        self.end -= self.start;
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_the_pieces() {
        let sent: Vec<u8> = (0..200_000_u32).map(|i| (i % 251).try_into().unwrap()).collect();
        let mut source = &sent[..];
        let mut buffer = Buffer::default();
        let mut received = Vec::new();
        let mut step = 1;
        while received.len() < sent.len() {
            let _ = buffer.fill(&mut source, 1, usize::MAX).unwrap();
            let take = buffer.len().min(step);
            received.extend_from_slice(&buffer.data()[..take]);
            buffer.consume(take);
            step = step * 3 % 4099 + 1;
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn an_announced_gigabyte_takes_no_memory_before_it_comes() {
        let mut buffer = Buffer::default();
        let _ = buffer
            .fill(&mut &b"set k 0 0 1073741824\r\n"[..], 1 << 30, usize::MAX)
            .unwrap();
        assert!(buffer.size() <= 2 * READ_ROOM_MIN, "{}", buffer.size());
        for _ in 0..10 {
            let _ = buffer.fill(&mut &vec![b'x'; 100_000][..], 1 << 30, usize::MAX).unwrap();
            assert!(
                buffer.size() <= 2 * buffer.len() + 2 * READ_ROOM_MIN,
                "{} for {}",
                buffer.size(),
                buffer.len()
            );
        }
    }

    #[test]
    fn a_large_request_fits_exactly_and_grows_by_doubling() {
        let value = vec![b'v'; 3 << 20];
        let mut buffer = Buffer::default();
        let mut sizes = Vec::new();
        // Pieces as small as packets: the growth must not depend on how many there are.
        for piece in value.chunks(1400) {
            let mut piece = piece;
            while !piece.is_empty() {
                assert!(buffer.fill(&mut piece, value.len(), usize::MAX).unwrap().0 > 0);
            }
            sizes.push(buffer.size());
        }
        assert_eq!(buffer.data(), &value[..]);
        assert!(buffer.size() <= value.len() + READ_ROOM_MIN + LARGE_UNIT);
        sizes.dedup();
        assert!(sizes.len() < 16, "grown {} times", sizes.len());
    }
}
