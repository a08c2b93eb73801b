//! The HTTP port beside tools of other authors: see `tests/`. Here is a server with such a port, and a page of metrics as numbers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use harness::{HttpAnswer, Kind, ServeOptions, Server, free_port, http_get};

/// A Keyway with an HTTP port.
pub struct Monitored {
    /// the server
    pub server: Server,
    /// where its HTTP port is
    pub http: SocketAddr,
}

impl Monitored {
    /// Starts one.
    ///
    /// # Panics
    ///
    /// When it does not come up.
    pub fn start(options: &ServeOptions) -> Self {
        // Another process may take the port between the choice and the start.
        for _ in 0..5 {
            let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let mut options = options.clone();
            options.keyway_arguments.extend(["--http".to_owned(), http.to_string()]);
            match Server::try_start(Kind::Keyway, &options) {
                Ok(server) => return Self { server, http },
                Err(failure) => assert!(failure.contains("in use"), "{failure}"),
            }
        }
        panic!("no free port for HTTP")
    }

    /// What a path answers.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn get(&self, path: &str) -> HttpAnswer {
        self.get_as(path, "*/*")
    }

    /// The same for a client that accepts this.
    ///
    /// # Panics
    ///
    /// When there is no answer.
    pub fn get_as(&self, path: &str, accept: &str) -> HttpAnswer {
        http_get(self.http, path, accept).unwrap_or_else(|error| panic!("{path}: {error}\n{}", self.server.log()))
    }

    /// The numbers of `/metrics`.
    ///
    /// # Panics
    ///
    /// When they cannot be read.
    pub fn numbers(&self) -> Numbers {
        Numbers::parse(&self.get("/metrics").body)
    }
}

/// A page of metrics in the text format: numbers by name and sorted labels, as `name{a="b",c="d"}`, and types by name.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// the samples
    pub samples: BTreeMap<String, f64>,
    /// the metrics' types
    pub types: BTreeMap<String, String>,
}

impl Numbers {
    /// Reads a page whose labels contain no commas, spaces and braces in their values.
    ///
    /// # Panics
    ///
    /// When a line is none of the format.
    pub fn parse(page: &str) -> Self {
        let mut numbers = Self::default();
        for line in page.lines() {
            if let Some(described) = line.strip_prefix("# TYPE ") {
                let (name, kind) = described.split_once(' ').expect("a type");
                numbers.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let name = match name.strip_suffix('}').and_then(|name| name.split_once('{')) {
                    Some((name, labels)) => {
                        let mut labels: Vec<&str> = labels.split(',').collect();
                        labels.sort_unstable();
                        format!("{name}{{{}}}", labels.join(","))
                    }
                    None => name.to_owned(),
                };
                numbers.samples.insert(name, value.parse().expect("a number"));
            }
        }
        numbers
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// When it is absent.
    pub fn of(&self, name: &str) -> f64 {
        *self
            .samples
            .get(name)
            .unwrap_or_else(|| panic!("no {name} among {} numbers", self.samples.len()))
    }
}
