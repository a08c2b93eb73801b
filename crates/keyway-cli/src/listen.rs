//! Listening addresses on a command line.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use keyway_server::{HttpAddress, UnixSocket};

/// The HTTP port, if an address names none: the one after memcached's.
const HTTP_PORT: u16 = 11212;
/// Mode of the HTTP port's Unix socket: as of the clients' one, unless it is asked for another.
const HTTP_SOCKET_MODE: u32 = 0o700;

/// The addresses of `text`: an IPv4 or IPv6 address, a name, or `*`, optionally with a colon and a port (IPv6 then in brackets).
/// Port 0 means "do not listen": no address at all.
pub(crate) fn parse(text: &str, default_port: u16) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = split(text, default_port)?;
    if port == 0 {
        return Ok(Vec::new());
    }
    if host == "*" {
        return Ok(everywhere(port));
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = (host, port).to_socket_addrs();
    let mut addresses: Vec<SocketAddr> = found
        .map_err(|error| format!("\"{text}\" names no address: {error}"))?
        .collect();
    addresses.dedup();
    Ok(addresses)
}

/// The host of an address, as it is written: a name or a number.
pub(crate) fn host(text: &str) -> &str {
    split(text, 0).map_or(text, |(host, _)| host)
}

/// Where the HTTP port listens: a path, known by its slash, or an address with [`HTTP_PORT`] if it names none.
pub(crate) fn parse_http(text: &str) -> Result<HttpAddress, String> {
    if text.contains('/') {
        return Ok(HttpAddress::Unix(UnixSocket {
            path: text.into(),
            mode: HTTP_SOCKET_MODE,
        }));
    }
    let addresses = parse(text, HTTP_PORT)?;
    if addresses.is_empty() {
        return Err(format!(
            "\"{text}\": port 0 is no HTTP port; leave the option out to have none"
        ));
    }
    Ok(HttpAddress::Tcp(addresses))
}

/// The name in the address of the HTTP port, if it has one: clients ask for it by this name too.
pub(crate) fn http_host(text: &str) -> Option<String> {
    let (host, _) = split(text, HTTP_PORT).ok().filter(|_| !text.contains('/'))?;
    (host != "*" && host.parse::<IpAddr>().is_err()).then(|| host.to_owned())
}

/// A name by which clients ask for the HTTP port.
pub(crate) fn parse_host(text: &str) -> Result<String, String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match !text.is_empty() && text.bytes().all(is_name) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "\"{text}\" is no name of a host: write it without a port, as in cache.example"
        )),
    }
}

/// All interfaces, in both address families.
pub(crate) fn everywhere(port: u16) -> Vec<SocketAddr> {
    vec![
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    ]
}

fn split(text: &str, default_port: u16) -> Result<(&str, u16), String> {
    let port_of = |port: &str| {
        port.parse::<u16>()
            .map_err(|_| format!("\"{port}\" in \"{text}\" is no port: it is a number from 0 to 65535"))
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Ok((text, default_port));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest
            .split_once(']')
            .ok_or_else(|| format!("\"{text}\" lacks the closing bracket"))?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, port_of(port)?)),
            None if rest.is_empty() => Ok((host, default_port)),
            None => Err(format!("\"{text}\": after ] comes a colon and the port")),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) => Ok((if host.is_empty() { "*" } else { host }, port_of(port)?)),
        None if text.is_empty() => Err("an address is missing".to_owned()),
        // The system would take it for an address of 32 bits.
        None if text != "0" && text.bytes().all(|byte| byte.is_ascii_digit()) => Err(format!(
            "\"{text}\" is a number and no address: a port comes after an address, as in 127.0.0.1:{text}, or *:{text} for all interfaces"
        )),
        None => Ok((text, default_port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<String> {
        parse(text, 11211).unwrap().iter().map(SocketAddr::to_string).collect()
    }

    #[test]
    fn addresses_come_in_many_forms() {
        assert_eq!(addresses("127.0.0.1"), ["127.0.0.1:11211"]);
        assert_eq!(addresses("127.0.0.1:1234"), ["127.0.0.1:1234"]);
        assert_eq!(addresses("::1"), ["[::1]:11211"]);
        assert_eq!(addresses("[::1]:1234"), ["[::1]:1234"]);
        assert_eq!(addresses("[::1]"), ["[::1]:11211"]);
        assert_eq!(addresses("*:7"), ["0.0.0.0:7", "[::]:7"]);
        assert_eq!(addresses(":7"), ["0.0.0.0:7", "[::]:7"]);
        assert!(addresses("localhost:5").iter().all(|a| a == "127.0.0.1:5" || a == "[::1]:5"));
        assert!(addresses("127.0.0.1:0").is_empty());
        assert_eq!(addresses("0"), ["0.0.0.0:11211"]);
        for text in ["8080", "99999"] {
            assert!(parse(text, 11211).unwrap_err().contains(&format!("127.0.0.1:{text}")));
            assert!(parse_http(text).is_err());
        }
    }

    #[test]
    fn the_http_port_is_an_address_or_a_path() {
        let tcp = |addresses: &[&str]| HttpAddress::Tcp(addresses.iter().map(|a| a.parse().unwrap()).collect());
        assert_eq!(parse_http("127.0.0.1").unwrap(), tcp(&["127.0.0.1:11212"]));
        assert_eq!(parse_http("[::1]:80").unwrap(), tcp(&["[::1]:80"]));
        assert_eq!(
            parse_http("./http").unwrap(),
            HttpAddress::Unix(UnixSocket {
                path: "./http".into(),
                mode: 0o700
            })
        );
        for text in ["", "127.0.0.1:0", "127.0.0.1:x"] {
            assert!(parse_http(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "127.0.0.1:", "127.0.0.1:99999", "[::1", "[::1]x", "host:port"] {
            assert!(parse(text, 1).is_err(), "{text}");
        }
    }
}
