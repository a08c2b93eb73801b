//! One table of conversations, (request bytes, expected reply bytes), that Keyway and a real memcached are both held to.
//!
//! The table is the text files in `table/`, parsed by [`table`], and what is too long or too regular to be written down, made
//! by [`generated`]. [`pattern`] compares replies with what stands in the table, [`play`] holds a conversation with a server.
//! The expected replies are a norm: neither server is asked what the other one would say.
//!
//! # The language of the table
//!
//! A conversation starts with `== name`. Lines that start with `#` are comments.
//!
//! | line | meaning |
//! |---|---|
//! | `> text` | sends the text and a line end; consecutive ones go out together |
//! | `>. text` | the same without the line end |
//! | `~> text` | sends this, again and again until the expected reply comes (for what becomes true with time) |
//! | `< text` | expects the text and a line end |
//! | `<. text` | the same without the line end |
//! | `<nothing` | expects no reply; the next reply must be that of a later request |
//! | `<close` | expects that the server closes the connection |
//! | `<block X` | expects lines up to the line `X`; the lines that follow say of what kind; spaces at line ends do not count |
//! | `<+ text` | … one of them is this |
//! | `<= text` | … each of them is of this form, or of that of another such line |
//! | `@own` | the conversation has a server of its own |
//! | `@within S` | what is expected before the first `~>` is so only if that is reached within S seconds: a conversation that departs, and was slower, is held again, on a server of its own |
//! | `@stepwise` | a client waits for each reply here: not to be pipelined |
//! | `@one-way` | the connection takes no requests after this conversation |
//! | `@keyway-only note`, `@memcached-only note` | the other one answers otherwise, for the reason in the note |
//! | `@since V note` | memcacheds older than V answer otherwise; the reply is that of V |
//! | `@until V note` | memcacheds from V on answer otherwise, for the reason in the note; Keyway answers so |
//!
//! In texts, `\r \n \t \0 \\ \xHH` are bytes and `{…}` is one of:
//!
//! | in | form | meaning |
//! |---|---|---|
//! | both | `{x*250}` | `x`, 250 times |
//! | both | `{c1}`, `{c1+1}`, `{c1-1}` | the number that was bound to the name, and its neighbours |
//! | request | `{now+100}`, `{now-100}` | a Unix time |
//! | reply | `{num=c1}` | a number: bound to the name, or compared with what is bound; two names never have one value |
//! | reply | `{num}`, `{dec}`, `{word}`, `{line}` | any number, decimal fraction, word, or rest of a line |
//! | reply | `{5..10}` | a number from 5 to 10 |

pub mod generated;
pub mod pattern;
pub mod play;
pub mod table;
