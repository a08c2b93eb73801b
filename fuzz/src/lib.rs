//! What the protocol targets share: one stream decoded in two ways must be one and the same conversation.

use keyway_proto::{Decoded, Decoder, Limits, Request};

/// One thing that a connection does with its stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// a request, with every field
    Request(String),
    /// a value that is too large, and the key to forget
    TooLarge(Option<Vec<u8>>),
    /// a reply without execution
    Refused(&'static [u8]),
    /// the connection ends
    Closed,
}

/// Small enough that a fuzzer reaches every limit.
fn limits() -> Limits {
    Limits {
        item_size_max: 200,
        keys_checked_len: 4096,
    }
}

/// Decodes `stream` as it arrives in chunks of the given sizes, used again and again, and hands each request to `answer`.
///
/// # Panics
///
/// If the decoder does not keep its promises: progress, `consumed` within the input, no request before the input holds the
/// `need` that was asked for.
pub fn converse(stream: &[u8], chunk_sizes: &[u8], mut answer: impl FnMut(&Request<'_>)) -> Vec<Event> {
    let mut decoder = Decoder::new(limits());
    let (mut events, mut start, mut end, mut need) = (Vec::new(), 0, 0, 0);
    let mut sizes = chunk_sizes.iter().copied().map(|size| usize::from(size).max(1)).cycle();
    while end < stream.len() {
        end = sizes.next().map_or(stream.len(), |size| stream.len().min(end + size));
        loop {
            let input = &stream[start..end];
            let consumed = match decoder.decode(input) {
                Decoded::Incomplete { need: more } => {
                    assert!(more > input.len(), "waits for what is there");
                    need = start + more;
                    break;
                }
                Decoded::Request { consumed, request } => {
                    answer(&request);
                    events.push(Event::Request(format!("{request:?}")));
                    consumed
                }
                Decoded::Refused { close: true, .. } => {
                    events.push(Event::Closed);
                    return events;
                }
                Decoded::TooLarge { consumed, forget } => {
                    events.push(Event::TooLarge(forget.map(|key| key.stored().to_vec())));
                    consumed
                }
                Decoded::Refused { consumed, reply, .. } => {
                    assert!(reply.is_empty() || reply.ends_with(b"\r\n"), "a reply is whole lines");
                    // Swallowed bytes come in as many pieces as there are chunks; only what is said counts.
                    if !reply.is_empty() {
                        events.push(Event::Refused(reply));
                    }
                    consumed
                }
            };
            assert!(end >= need, "answered before the bytes that it said it needs");
            assert!(consumed > 0 && consumed <= input.len(), "no progress, or more than there is");
            start += consumed;
        }
    }
    events
}
