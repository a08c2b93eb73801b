//! The items that a command works on: those of a region, through the library door, or those that a server has, through its connection.
//!
//! | file | holds |
//! |---|---|
//! | `region` | the library door; no server is needed |
//! | `server` | the network door, with meta commands, so that a key may have blanks |

mod region;
mod server;

use clap::Args;

use crate::commands::Which;
use crate::exit::Failure;
use crate::wire::{Access, Client};
use crate::{place, wire};

/// Keys that are read between two writes to the output.
const KEYS_PER_STEP: usize = 1024;

/// An item, as a command shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) value: Vec<u8>,
    pub(crate) flags: u32,
    /// `None`: it does not expire
    pub(crate) ttl_s: Option<u32>,
    pub(crate) unique: u64,
    pub(crate) is_stale: bool,
    /// its key is opaque bytes, which the text protocol has to encode
    pub(crate) opaque_key: bool,
    /// bytes that it takes in the region, if that is known
    pub(crate) takes: Option<usize>,
}

/// An item to be stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) flags: u32,
    /// protocol.txt, "Expiration times"
    pub(crate) exptime: i64,
    /// only where no item has the key
    pub(crate) is_new: bool,
    /// the key is opaque bytes
    pub(crate) opaque_key: bool,
}

/// What became of items, some time after they were to be stored.
pub(crate) trait Outcomes {
    /// The item of this key is stored.
    fn stored(&mut self);
    /// It is not, and why.
    fn refused(&mut self, key: &[u8], why: &str);
}

/// What is done with each item that is found.
pub(crate) type Each<'e> = dyn FnMut(&[u8], Got) -> Result<(), Failure> + 'e;

/// Items that can be read and changed.
pub(crate) trait Items {
    /// The item of `key`. Only one that is looked up for use counts as accessed.
    fn get(&mut self, key: &[u8], is_used: bool) -> Result<Option<Got>, Failure>;
    /// The items of many keys, which do not count as accessed; those that are gone are left out.
    fn get_many(&mut self, keys: &[Vec<u8>], each: &mut Each<'_>) -> Result<(), Failure>;
    /// Stores an item. Another one may be stored before `outcomes` has it.
    fn put(&mut self, item: Put<'_>, outcomes: &mut dyn Outcomes) -> Result<(), Failure>;
    /// Waits until `outcomes` has all items.
    fn settle(&mut self, outcomes: &mut dyn Outcomes) -> Result<(), Failure>;
    /// Deletes an item. `false`: there was none.
    fn delete(&mut self, key: &[u8]) -> Result<bool, Failure>;
    /// Gives an item another lifetime. `false`: there is none.
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, Failure>;
    /// Adds to a number, or subtracts from it. `None`: there is no item; unless `initial` makes one, with an exptime.
    fn count(&mut self, key: &[u8], delta: u64, decrement: bool, initial: Option<(u64, i64)>) -> Result<Option<u64>, Failure>;
    /// Removes all items, now or after a delay in seconds.
    fn flush(&mut self, delay_s: u32) -> Result<(), Failure>;
    /// The next keys of all. `None`: these were all.
    fn keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure>;
    /// Items that were evicted so far.
    fn evictions(&mut self) -> Result<u64, Failure>;
    /// Whether nothing more can be asked, because the connection to the server is lost.
    fn is_broken(&self) -> bool {
        false
    }
    /// Where they are, for people.
    fn place(&self) -> String;
}

/// Which items.
#[derive(Args, Clone)]
pub(crate) struct At {
    #[command(flatten)]
    region: crate::Region,
    /// Ask this server instead of a region: [tls://]ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["region", "port", "any_owner"])]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
}

impl At {
    pub(crate) fn open(self) -> Result<Box<dyn Items>, Failure> {
        match self.server {
            Some(place) => of_server(place, self.access),
            None => of_region(self.region.place()),
        }
    }

    /// What there is where the command line does not say which: the server on memcached's port, or else the default region.
    pub(crate) fn default(mut self) -> Option<Self> {
        let server = format!("127.0.0.1:{}", place::DEFAULT_PORT);
        if wire::open(&server, &self.access).is_ok() {
            self.server = Some(server);
            return Some(self);
        }
        place::chosen(None, None).exists().then_some(self)
    }

    /// Whether the command line says which.
    pub(crate) fn is_named(&self) -> bool {
        self.server.is_some() || self.region.is_named()
    }
}

/// The items of a server.
pub(crate) fn of_server(place: String, access: Access) -> Result<Box<dyn Items>, Failure> {
    let client = Client::connect(&place, &access)?;
    Ok(Box::new(server::ServerItems::new(client, access)))
}

/// The items of a region.
pub(crate) fn of_region(which: Which) -> Result<Box<dyn Items>, Failure> {
    Ok(Box::new(region::Library::open(which)?))
}

/// A key or another text of bytes, as all commands print it: bytes other than printable ASCII as `\xNN`, and none as `""`.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match bytes.is_empty() {
        true => "\"\"".to_owned(),
        false => bytes.escape_ascii().to_string(),
    }
}
