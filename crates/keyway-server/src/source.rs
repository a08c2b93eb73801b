//! Where datagrams may come from: a list of networks in CIDR notation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses: those that agree with `address` in the first `prefix_len` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix_len: u8,
}

/// The sources that UDP accepts unless the configuration says otherwise: this machine.
pub const LOOPBACK: [Network; 2] = [
    Network {
        address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
        prefix_len: 8,
    },
    Network {
        address: IpAddr::V6(Ipv6Addr::LOCALHOST),
        prefix_len: 128,
    },
];

impl Network {
    /// Whether `address` is in the network. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, theirs, len) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(theirs)) => (own.to_bits().into(), theirs.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(theirs)) => (own.to_bits(), theirs.to_bits(), 128),
            _ => return false,
        };
        let free_bits = len - u32::from(self.prefix_len);
        let differing: u128 = own ^ theirs;
        differing.checked_shr(free_bits).unwrap_or(0) == 0
    }
}

impl FromStr for Network {
    type Err = String;

    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address. Bits after the prefix must be 0: a typing error there would admit other
    /// addresses than intended.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| {
            format!("\"{text}\" is no network: write an IPv4 or IPv6 address, and perhaps / and the length of its prefix")
        })?;
        let len_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match len.map(str::parse) {
            None => len_max,
            Some(Ok(len)) if len <= len_max => len,
            Some(_) => {
                return Err(format!(
                    "\"{text}\": the length of the prefix is a number from 0 to {len_max}"
                ));
            }
        };
        let network = Self { address, prefix_len };
        let first = network.first();
        if first != address {
            return Err(format!(
                "\"{text}\" has bits after its prefix: {first}/{prefix_len} is the network"
            ));
        }
        Ok(network)
    }
}

impl Network {
    /// Its first address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits that its addresses have in common.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    fn first(&self) -> IpAddr {
        let prefix_len = u32::from(self.prefix_len);
        match self.address {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & !u32::MAX.checked_shr(prefix_len).unwrap_or(0)).into(),
            IpAddr::V6(address) => {
                Ipv6Addr::from_bits(address.to_bits() & !u128::MAX.checked_shr(prefix_len).unwrap_or(0)).into()
            }
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_what_agrees_with_its_prefix() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("192.168.4.0/22", "192.168.7.255", "192.168.8.0"),
            ("1.2.3.4", "1.2.3.4", "1.2.3.5"),
            ("1.2.3.4/32", "::ffff:1.2.3.4", "::1.2.3.4"),
            ("0.0.0.0/0", "255.255.255.255", "::1"),
            ("::/0", "fe80::1", "127.0.0.1"),
            ("fd00::/8", "fdff::1", "fc00::1"),
            ("::1", "::1", "::2"),
        ] {
            let network: Network = network.parse().unwrap();
            assert!(network.contains(inside.parse().unwrap()), "{inside} in {network}");
            assert!(!network.contains(outside.parse().unwrap()), "{outside} not in {network}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "is no network"),
            ("example", "is no network"),
            ("10.0.0.0/33", "0 to 32"),
            ("::/129", "0 to 128"),
            ("::/-1", "0 to 128"),
            ("10.1.0.0/8", "10.0.0.0/8 is the network"),
            ("fd00::1/64", "fd00::/64 is the network"),
        ] {
            let refused = text.parse::<Network>().unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        assert!(LOOPBACK.iter().all(|network| network.first() == network.address));
    }
}
