//! A session's buffer, for a value that does not go to the caller's memory at once: because that is other code's, which runs when the
//! gate has closed ([`keyway_region::Target::reach`]), or because the item changes meanwhile.

use keyway_region::Sink;
use keyway_region::heap::reserve;
use keyway_region::verbs::{Item, WriteError};

/// Size of the largest buffer that a session keeps from call to call, bytes.
const KEPT_MAX: usize = 64 << 10;

/// Gives an item and its value, which is in our memory, to the sink.
pub fn pass(sink: &mut impl Sink, item: &Item, value: &[u8]) -> Result<(), WriteError> {
    let start = sink.len();
    if !sink.begin(item) || value.is_empty() {
        return Ok(());
    }
    sink.append_bytes(value).map_err(|_| {
        sink.truncate(start);
        WriteError::NoMemory { len: value.len() }
    })
}

/// A buffer that is kept from call to call, unless it has grown beyond [`KEPT_MAX`].
#[derive(Default)]
pub struct Buffer(Vec<u8>);

impl Buffer {
    /// Takes it out, empty.
    pub fn lend(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.0);
        buffer.clear();
        buffer
    }

    /// Puts it back.
    pub fn give_back(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEPT_MAX {
            self.0 = buffer;
        }
    }
}

/// What a walk has found while the gate was open.
#[derive(Default)]
pub struct Walked {
    keys: Vec<u8>,
    items: Vec<(usize, Item)>,
}

impl Walked {
    /// To be called inside the gate.
    pub fn note(&mut self, key: &[u8], item: &Item) {
        reserve(&mut self.keys, key.len());
        self.keys.extend_from_slice(key);
        reserve(&mut self.items, 1);
        self.items.push((key.len(), *item));
    }

    /// To be called when the gate has closed.
    pub fn hand_over(&self, mut visit: impl FnMut(&[u8], &Item)) {
        let mut rest = self.keys.as_slice();
        for (len, item) in &self.items {
            let (key, behind) = rest.split_at_checked(*len).unwrap_or((rest, &[]));
            rest = behind;
            visit(key, item);
        }
    }
}
