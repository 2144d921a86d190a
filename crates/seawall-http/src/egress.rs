//! The addresses to which the gateway connects for URLs from outside. A callback must not become a way into the gateway's own network.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Public addresses, and the networks that the operator lists.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    allow: Vec<IpNet>,
}

impl Reach {
    #[must_use]
    pub const fn new(allow: Vec<IpNet>) -> Self {
        Self { allow }
    }

    /// Whether this reach allows exactly these additional networks.
    #[must_use]
    pub fn is_of(&self, allow: &[IpNet]) -> bool {
        self.allow == allow
    }

    #[must_use]
    pub fn permits(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public(address) || self.allow.iter().any(|net| net.contains(&address))
    }
}

/// The error text for such a URL's address.
pub const OUT_OF_REACH: &str = "is not a public address, and `allow_private` does not list it";

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => is_public_v6(v6),
    }
}

/// Azure's address for the platform itself, which hands out certificates and settings of the machine. No private block contains it.
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Everything except the special-purpose blocks (RFC 6890 and its registry).
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b))
        || address == AZURE;
    !special
}

/// Global unicast only, without the blocks that tunnel IPv4.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let global = first & 0xe000 == 0x2000;
    let teredo = first == 0x2001 && second < 0x0200;
    let documentation = first == 0x2001 && second == 0x0db8 || first == 0x3fff;
    global && !teredo && first != 0x2002 && !documentation
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(reach: &Reach, address: &str) -> bool {
        reach.permits(address.parse().unwrap())
    }

    #[test]
    fn only_the_public_internet_is_within_reach() {
        let reach = Reach::default();
        for address in ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "100.63.0.1", "198.20.0.1"] {
            assert!(permits(&reach, address), "{address}");
        }
        let inside = [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.0.8",
            "198.18.0.1",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001:0:53aa::1",
            "168.63.129.16",
            "::ffff:168.63.129.16",
            "::168.63.129.16",
            "64:ff9b::a83f:8110",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a83f:8110::",
            "192.0.0.192",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:0:7f00:1",
        ];
        for address in inside {
            assert!(!permits(&reach, address), "{address}");
        }
    }

    #[test]
    fn what_is_listed_is_within_reach_and_nothing_else() {
        let reach = Reach::new(vec!["127.0.0.0/8".parse().unwrap()]);
        assert!(permits(&reach, "127.0.0.1") && permits(&reach, "::ffff:127.9.9.9"));
        assert!(!permits(&reach, "10.0.0.1") && !permits(&reach, "::1"));
        assert!(permits(&Reach::new(vec!["168.63.129.16/32".parse().unwrap()]), "168.63.129.16"));
    }
}
