//! The ways in which the threads of `race` and `cold` use a cache.

use harness::{Server, Transport, Wire};
use keyway_cache::{Begun, Delete, Fetch, Session};

/// What a fetch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// the number was there
    Found(u64),
    /// it was computed; `false`: and dropped, because the key had changed meanwhile
    Computed(u64, bool),
    /// another caller computes it
    Elsewhere,
}

/// A cache of numbers.
pub trait Door: Send {
    /// The number of a key.
    fn get(&mut self, key: &str) -> Option<u64>;
    /// Stores it, whatever was there.
    fn set(&mut self, key: &str, number: u64);
    /// Deletes the key.
    fn delete(&mut self, key: &str);
    /// A get, and if it finds nothing, a computation by one caller.
    fn fetch(&mut self, key: &str, compute: &mut dyn FnMut() -> u64) -> Fetched;
    /// As many programs do it: a get, and if it finds nothing, a computation and a set.
    fn get_and_set(&mut self, key: &str, compute: &mut dyn FnMut() -> u64) -> Fetched {
        if let Some(number) = self.get(key) {
            return Fetched::Found(number);
        }
        let number = compute();
        self.set(key, number);
        Fetched::Computed(number, true)
    }
}

/// The library.
pub struct Library {
    session: Session,
    how: Fetch<'static>,
    value: Vec<u8>,
}

impl Library {
    /// A session's verbs; fetches are done like this.
    pub fn new(session: Session, how: Fetch<'static>) -> Self {
        Self {
            session,
            how,
            value: Vec::new(),
        }
    }
}

impl Door for Library {
    fn get(&mut self, key: &str) -> Option<u64> {
        self.value.clear();
        self.session.get_append(key.as_bytes(), &mut self.value).expect("a get")?;
        number_of(&self.value)
    }

    fn set(&mut self, key: &str, number: u64) {
        let value = number.to_string();
        self.session.set(key.as_bytes(), value.as_bytes(), 0).expect("a set");
    }

    fn delete(&mut self, key: &str) {
        self.session.delete(key.as_bytes(), &Delete::default()).expect("a delete");
    }

    fn fetch(&mut self, key: &str, compute: &mut dyn FnMut() -> u64) -> Fetched {
        self.value.clear();
        let begun = self.session.fetch_begin(key.as_bytes(), &self.how, &mut self.value);
        match begun.expect("a fetch") {
            Begun::Hit(_) | Begun::Stale(_) => number_of(&self.value).map_or(Fetched::Elsewhere, Fetched::Found),
            Begun::Nothing | Begun::Waited(_) => Fetched::Elsewhere,
            Begun::Compute(token) => {
                let number = compute();
                let value = number.to_string();
                let stored = self.session.fetch_store(key.as_bytes(), token, value.as_bytes(), &self.how);
                Fetched::Computed(number, stored.expect("a store"))
            }
        }
    }
}

/// How a client of the network asks for the right to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// `lease-get`, `lease-set`
    Leases,
    /// `mg` with N, which wins, and `ms` with C, which compares
    Wins,
}

/// A client of the network.
pub struct Client {
    wire: Wire,
    asks: Asks,
}

impl Client {
    /// A new connection.
    pub fn new(server: &Server, asks: Asks) -> Self {
        Self {
            wire: server.connect(Transport::Tcp),
            asks,
        }
    }

    fn ask(&mut self, request: &str) -> String {
        self.wire.send(request.as_bytes()).expect("a server that takes requests");
        self.line()
    }

    fn line(&mut self) -> String {
        String::from_utf8(self.wire.line().expect("a line")).expect("text")
    }

    /// The right to compute, by a word for the store; or a number.
    fn lease(&mut self, key: &str) -> Result<u64, Option<String>> {
        let line = self.ask(&format!("lease-get {key}\r\n"));
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words.as_slice() {
            ["VALUE", ..] => number_of(self.line().as_bytes()).ok_or(None),
            // mcrouter's tokens: 1 while another computes.
            ["LVALUE", _, "1", ..] => Err(None),
            ["LVALUE", _, token, ..] => Err(Some((*token).to_owned())),
            _ => panic!("lease-get {key}: {line}"),
        };
        if words.first() == Some(&"LVALUE") {
            self.line();
        }
        self.line();
        answer
    }

    fn win(&mut self, key: &str) -> Result<u64, Option<String>> {
        let line = self.ask(&format!("mg {key} c v N30\r\n"));
        let words: Vec<&str> = line.split(' ').collect();
        let ["VA", len, unique, flags @ ..] = words.as_slice() else {
            panic!("mg {key}: {line}");
        };
        let value = self.line();
        match *len {
            "0" if flags.contains(&"W") => Err(Some(unique.trim_start_matches('c').to_owned())),
            "0" => Err(None),
            _ => number_of(value.as_bytes()).ok_or(None),
        }
    }
}

impl Door for Client {
    fn get(&mut self, key: &str) -> Option<u64> {
        let found = self.wire.get(false, &[key]).expect("a get");
        found.first().and_then(|item| number_of(&item.value))
    }

    fn set(&mut self, key: &str, number: u64) {
        let value = number.to_string();
        let answer = self.ask(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()));
        assert_eq!(answer, "STORED");
    }

    fn delete(&mut self, key: &str) {
        let answer = self.ask(&format!("delete {key}\r\n"));
        assert!(answer == "DELETED" || answer == "NOT_FOUND", "{answer}");
    }

    fn fetch(&mut self, key: &str, compute: &mut dyn FnMut() -> u64) -> Fetched {
        let token = match self.asks {
            Asks::Leases => self.lease(key),
            Asks::Wins => self.win(key),
        };
        let token = match token {
            Ok(number) => return Fetched::Found(number),
            Err(None) => return Fetched::Elsewhere,
            Err(Some(token)) => token,
        };
        let number = compute();
        let value = number.to_string();
        let len = value.len();
        let answer = match self.asks {
            Asks::Leases => self.ask(&format!("lease-set {key} {token} 0 0 {len}\r\n{value}\r\n")),
            Asks::Wins => self.ask(&format!("ms {key} {len} C{token}\r\n{value}\r\n")),
        };
        match answer.as_str() {
            "STORED" | "HD" => Fetched::Computed(number, true),
            "NOT_STORED" | "NF" | "EX" => Fetched::Computed(number, false),
            other => panic!("a store of {key}: {other}"),
        }
    }
}

/// `None`: the item is empty, as that of a key which a client has won.
fn number_of(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.parse().ok()
}
