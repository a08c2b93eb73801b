mod stripes;

pub(crate) use stripes::Offered;
pub use stripes::{FLUSH, STRIPES, Stripes, WORDS};
