//! The meaning of a region's bytes: one file per structure, each written once. `docs/region.md` explains the same in prose.

/// `fields!(Type { every, field })`: the offset of each field of a shared structure, for [`fingerprint`]. It does not compile if
/// a field is missing.
macro_rules! fields {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $type {
            /// Its size and alignment, and of each field {offset 32, bytes 32}.
            pub(crate) const FIELDS: &'static [(&'static str, u64)] = &[
                (concat!(stringify!($type), ": bytes"), size_of::<$type>() as u64),
                (concat!(stringify!($type), ": alignment"), align_of::<$type>() as u64),
                $((
                    concat!(stringify!($type), ".", stringify!($field)),
                    (core::mem::offset_of!($type, $field) as u64) << 32 | $crate::layout::bytes_of(|s: &$type| &s.$field) as u64,
                ),)*
            ];
        }
        const _: fn(&$type) = |$type { $($field: _),* }| ();
    };
}
use fields;

/// A number, or the nearest of these bounds.
const fn within(number: usize, (least, most): (usize, usize)) -> usize {
    if number < least {
        least
    } else if number > most {
        most
    } else {
        number
    }
}

pub mod bucket;
pub mod fingerprint;
pub mod flight;
pub mod hot;
pub mod item;
pub mod latency;
pub mod plan;
pub mod segment;
pub mod session;
pub mod slot;
pub mod stats;
pub mod superblock;
pub mod trail;
pub mod watch;

/// Bytes of a field.
const fn bytes_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// A number out of a 64-bit word as an index.
#[inline]
#[allow(
    clippy::cast_possible_truncation,
    reason = "usize has 64 bits: lib.rs refuses other targets"
)]
pub(crate) const fn index(n: u64) -> usize {
    n as usize
}
