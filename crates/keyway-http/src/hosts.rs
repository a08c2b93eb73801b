//! For which hosts a request is answered.
//!
//! Enemy: a page of another site in a browser that reaches this port. Its script may read the answers to its own site, and can have the name
//! of that site resolved to this port's address (DNS rebinding). Such a request names the other site as its host. One that names an
//! address, or a loopback name (RFC 6761, 6.3), cannot come from there; one that names no host does not come from a browser.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{self, HeaderMap};
use hyper::{Request, Uri};

/// The names that a port has besides its addresses and the loopback names.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These names; upper and lower case are the same.
    pub fn named<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        Self(names.into_iter().map(|name| canonical(name.as_ref())).collect())
    }

    /// The host of this request, if it is not one of these.
    pub(crate) fn stranger<B>(&self, request: &Request<B>) -> Option<String> {
        let shown = |host: &str| host.escape_default().to_string();
        named_in(request.uri(), request.headers())
            .into_iter()
            .find_map(|host| match host {
                Ok(host) => (!self.has(&host)).then(|| shown(&host)),
                Err(text) => Some(shown(&text)),
            })
    }

    fn has(&self, host: &str) -> bool {
        let host = canonical(host);
        let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_address = match literal {
            Some(literal) => literal.parse::<Ipv6Addr>().is_ok(),
            None => host.parse::<IpAddr>().is_ok(),
        };
        is_address || host == "localhost" || host.ends_with(".localhost") || self.0.contains(&host)
    }
}

/// The hosts that a request names, in its target and in its headers. `Err`: text that is no host.
fn named_in(target: &Uri, headers: &HeaderMap) -> Vec<Result<String, String>> {
    let of_target = target.authority().map(|authority| host_of(authority.as_str()));
    let of_headers = headers.get_all(header::HOST).iter().filter(|value| !value.is_empty());
    let of_headers = of_headers.map(|value| match value.to_str() {
        Ok(text) => host_of(text),
        Err(_) => Err(String::from_utf8_lossy(value.as_bytes()).into_owned()),
    });
    of_target.into_iter().chain(of_headers).collect()
}

/// The host in `HOST` or `HOST:PORT`, an IPv6 address with its brackets.
fn host_of(text: &str) -> Result<String, String> {
    let len = match text.starts_with('[') {
        true => text.find(']').map(|end| end + 1),
        false => Some(text.find(':').unwrap_or(text.len())),
    };
    let is_port = |rest: &str| {
        rest.strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    match len.map(|len| text.split_at(len)) {
        Some((host, rest)) if rest.is_empty() || is_port(rest) => Ok(host.to_owned()),
        _ => Err(text.to_owned()),
    }
}

/// In small letters, and without the dot that ends a complete name.
fn canonical(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.strip_suffix('.').map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stranger(target: &str, hosts: &[&str]) -> Option<String> {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(header::HOST, host.as_bytes());
        }
        Hosts::named(["Cache.Example", "shop"]).stranger(&request.body(()).unwrap())
    }

    #[test]
    fn addresses_loopback_names_and_names_of_its_own_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:11212",
            "10.1.2.3:80",
            "[::1]",
            "[2001:db8::1]:11212",
            "localhost",
            "LocalHost:11212",
            "localhost.",
            "a.localhost:1",
            "cache.example",
            "CACHE.example.:11212",
            "shop:11212",
            "",
        ] {
            assert_eq!(stranger("/metrics", &[host]), None, "{host}");
        }
        assert_eq!(stranger("/metrics", &[]), None);
        assert_eq!(stranger("http://127.0.0.1:1/metrics", &["localhost"]), None);
    }

    #[test]
    fn every_other_host_is_a_stranger() {
        for host in [
            "evil.example",
            "evil.example:11212",
            "cache.example.evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "[::1].evil.example",
            "[::1",
            "x",
            "127.0.0.1 evil.example",
            "localhost,evil.example",
            "\u{e4}",
            "/",
        ] {
            assert!(stranger("/metrics", &[host]).is_some(), "{host}");
        }
        assert_eq!(stranger("/", &["localhost", "evil.example"]).as_deref(), Some("evil.example"));
        assert_eq!(
            stranger("http://evil.example/", &["localhost"]).as_deref(),
            Some("evil.example")
        );
    }
}
