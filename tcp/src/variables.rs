//! Environment variables that select addresses and ports. None is needed where all interfaces may be used.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use transom_launch::variables::{SetBy, Variable, readable};

/// All variables of this crate.
pub const TABLE: &[Variable] = &[INTERFACE, PORTS];

/// Interfaces that ranks listen on.
pub const INTERFACE: Variable = Variable {
    name: "TRANSOM_TCP_INTERFACE",
    set_by: SetBy::User,
    meaning: "TCP: the interface at whose address each rank accepts connections; ranks of different hosts may have different ones",
    expected: "the name of an interface that `ip address` lists, e.g. `eth0`, or a subnet, e.g. `10.0.0.0/8`",
    default: "all interfaces; a peer tries the addresses in turn",
    check: readable::<Selector>,
};

/// Ports that ranks listen on.
pub const PORTS: Variable = Variable {
    name: "TRANSOM_TCP_PORTS",
    set_by: SetBy::User,
    meaning: "TCP: the ports on which ranks accept connections, one each: as many as a host has ranks, for a firewall",
    expected: "two numbers from 1 to 65535, first and last, e.g. `47000-47099`",
    default: "a free port that the system selects",
    check: readable::<Ports>,
};

/// Selection of interfaces: a name, or a subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selector {
    Name(String),
    /// An address, and the number of its first bits that count.
    Subnet(IpAddr, u32),
}

impl Selector {
    /// Returns whether an address of the interface `name` is selected.
    pub fn selects(&self, name: &str, address: IpAddr) -> bool {
        match (self, address) {
            (Selector::Name(wanted), _) => wanted == name,
            (Selector::Subnet(IpAddr::V4(net), bits), IpAddr::V4(address)) => {
                (net.to_bits() ^ address.to_bits()).leading_zeros() >= *bits
            }
            (Selector::Subnet(IpAddr::V6(net), bits), IpAddr::V6(address)) => {
                (net.to_bits() ^ address.to_bits()).leading_zeros() >= *bits
            }
            (Selector::Subnet(..), _) => false,
        }
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let Some((address, bits)) = text.split_once('/') else {
            return match text {
                "" => Err("no name".into()),
                _ if text.parse::<IpAddr>().is_ok() => {
                    Err(format!("an address without a prefix length; `{text}/32` selects that address alone"))
                }
                _ => Ok(Selector::Name(text.into())),
            };
        };
        let address: IpAddr = address.parse().map_err(|_| format!("`{address}` is not an address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        match bits.parse() {
            Ok(bits) if bits <= most => Ok(Selector::Subnet(address, bits)),
            _ => Err(format!("`{bits}` is not a prefix length from 0 to {most}")),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Name(name) => f.write_str(name),
            Selector::Subnet(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

/// A range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ports {
    pub first: u16,
    pub last: u16,
}

impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (first, last) = text.trim().split_once('-').ok_or("not two numbers with `-` between them")?;
        let port = |text: &str| text.trim().parse().ok().filter(|&port| port > 0).ok_or("not a port number");
        let ports = Ports { first: port(first)?, last: port(last)? };
        if ports.first <= ports.last { Ok(ports) } else { Err("the first port is above the last") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_select_names_and_subnets() {
        let selects =
            |text: &str, name, address: &str| text.parse::<Selector>().unwrap().selects(name, address.parse().unwrap());
        assert!(selects("eth0", "eth0", "1.2.3.4") && !selects("eth0", "eth1", "1.2.3.4"));
        assert!(selects("10.0.0.0/8", "x", "10.9.9.9") && !selects("10.0.0.0/8", "x", "11.0.0.0"));
        assert!(selects("0.0.0.0/0", "x", "255.0.0.0") && !selects("0.0.0.0/0", "x", "::1"));
        assert!(selects("fd00::/8", "x", "fdff::1") && !selects("::1/128", "x", "::2"));
        for wrong in ["", "10.0.0.1", "10.0.0.0/33", "a/8", "::/129"] {
            assert!(wrong.parse::<Selector>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_are_two_ordered_numbers() {
        assert_eq!("5-7".parse(), Ok(Ports { first: 5, last: 7 }));
        assert_eq!(" 65535 - 65535 ".parse(), Ok(Ports { first: 65535, last: 65535 }));
        for wrong in ["5", "7-5", "0-3", "1-65536", "a-b", "5-"] {
            assert!(wrong.parse::<Ports>().is_err(), "{wrong}");
        }
    }
}
