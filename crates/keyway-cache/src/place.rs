//! What the name of a place is: a path, or probably the address of a server that the caller had in mind.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Whether memcached's clients name a server like this: `localhost`, an IP address, or a host and a port. A path with a
/// folder is not an address.
pub(crate) fn is_address(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|text| !text.contains('/')) else {
        return false;
    };
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() || text.eq_ignore_ascii_case("localhost") {
        return true;
    }
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte));
        is_host && port.parse::<u16>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_are_told_from_paths() {
        for text in [
            "127.0.0.1:11211",
            "127.0.0.1",
            "::1",
            "[::1]",
            "[::1]:11211",
            "localhost",
            "Localhost:11211",
            "cache-1.example.org:11211",
            ":11211",
            "*:11211",
        ] {
            assert!(is_address(Path::new(text)), "{text}");
        }
        for text in [
            "/dev/shm/keyway-0-11211",
            "./localhost",
            "region",
            "region.sock",
            "localhost:memcached",
            "cache:99999",
            "a b:1",
            "/run/a:11211",
            "127.0.0.1:11211/region",
            "",
        ] {
            assert!(!is_address(Path::new(text)), "{text}");
        }
    }
}
