//! Why bytes are not usable as a region.

use crate::layout::superblock::Maker;

/// Why bytes are not a usable region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// shorter than a superblock, or shorter than it says
    Truncated {
        /// the bytes that are present
        len: usize,
        /// the bytes that there should be
        wanted: usize,
    },
    /// no region at all
    NotARegion,
    /// it is being made, or its maker died before it was complete
    Unfinished,
    /// made by a program with another layout
    Layout {
        /// the program that made it
        made_by: Maker,
        /// this program
        this: Maker,
    },
    /// features that this version does not know
    Features {
        /// the unknown bits
        unknown: u64,
    },
    /// a region in durable mode on memory, or with a processor, that cannot make its changes persistent
    NotPersistent(&'static str),
    /// the superblock is corrupted: it does not match its checksum, or has an impossible value
    Damaged(&'static str),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated { len, wanted } => write!(f, "the file has {len} bytes, its region needs {wanted}: it was truncated"),
            Self::NotARegion => f.write_str("the file is no Keyway region (wrong magic number)"),
            Self::Unfinished => f.write_str("the region is not finished: its maker is at work, or died"),
            Self::Layout { made_by, this } => write!(
                f,
                "the region was made by {made_by}, and this is {this}, which uses regions of its own layout only; to keep the items, \
                 send the output of the other program's `keyway dump` to a server with a new region"
            ),
            Self::Features { unknown } => write!(
                f,
                "the region uses features that this program does not know (bits {unknown:#x})"
            ),
            Self::NotPersistent(what) => write!(f, "the region was made with --durable, and {what}"),
            Self::Damaged(what) => write!(f, "the region's superblock is damaged: {what}"),
        }
    }
}

impl core::error::Error for Unusable {}
