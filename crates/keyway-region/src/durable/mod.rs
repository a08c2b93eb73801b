pub(crate) mod persist;
