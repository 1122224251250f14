//! Selection of the rails of a job among the ports that its ranks could use. The n-th rail of a rank talks with the n-th
//! rail of each other, so both must be in one network. A pure function of what all ranks offer: each rank computes it.

use super::choose::{Choice, FULL_MEMBER, Link, speed};
use super::place::Place;
use crate::VerbsError;
use std::cmp::Reverse;
use std::net::Ipv6Addr;
use transom_launch::Interface;
use transom_locks::Rank;

/// The ports that a rank could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The user named these ports: they are the rails, in this order.
    pub is_named: bool,
    pub ports: Vec<OfferedPort>,
}

/// A port that a rank could use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedPort {
    pub device: String,
    pub port: u8,
    /// Identifies the adapter.
    pub adapter: u64,
    pub place: Place,
    /// Bandwidth in Mb/s; 0 if unknown.
    pub rate: u32,
    pub link: Link,
    /// Partition, as the key of its full members.
    pub partition: u16,
    pub network: Network,
}

/// The network of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub kind: NetworkKind,
    /// Address of the network, as far as `prefix` says; the other bits are zero.
    pub address: u128,
    /// Number of leading bits of `address` that count; 0 if the network is not known.
    pub prefix: u8,
}

/// Kinds of networks. Ports in networks of two kinds do not reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NetworkKind {
    /// A subnet of InfiniBand, which packets do not leave.
    Subnet = 1,
    /// A subnet of InfiniBand whose packets carry a GRH. Routers may connect it with others.
    RoutedSubnet = 2,
    /// IP networks of RoCE. Routers may connect networks of one kind.
    V4 = 3,
    V6 = 4,
}

/// Two ports with equal keys are in one network, as far as known.
type Key = (u8, u16, Network, usize);

/// The numbers of the ports that are the rails of rank `me`, in order, at most `most`.
///
/// Ports that the user named are the rails; ranks that named none use ports of the same link type, in order. Otherwise the networks in which all ranks have ports determine the rails,
/// the one of rank 0's fastest port first. If all ranks have ports only in networks that routers may connect, the ports
/// are paired by number. In each network a rank takes its fastest and nearest ports; ranks with equal ports begin with
/// different ones.
pub(crate) fn rails(offers: &[Offer], me: Rank, most: usize) -> Result<Vec<usize>, VerbsError> {
    let mine = &offers[me].ports;
    if let Some(named) = offers.iter().find(|offer| offer.is_named) {
        if offers[me].is_named {
            return Ok((0..mine.len()).collect());
        }
        let alike: Vec<usize> = (0..mine.len()).filter(|port| mine[*port].link == named.ports[0].link).collect();
        return if alike.is_empty() { Err(apart(offers)) } else { Ok(alike.into_iter().take(most).collect()) };
    }
    let turn = offers[..me].iter().filter(|offer| **offer == offers[me]).count();
    for key in [by_network, by_number] {
        let keys: Vec<Vec<Key>> = offers.iter().map(|offer| key(&offer.ports)).collect();
        let networks = common(&offers[0].ports, &keys);
        let chosen = networks.into_iter().flat_map(|(network, ports)| {
            let there = (0..mine.len()).filter(|port| keys[me][*port] == network);
            nearest(mine, there.collect(), turn).into_iter().take(ports)
        });
        let chosen: Vec<usize> = chosen.take(most).collect();
        if !chosen.is_empty() {
            return Ok(chosen);
        }
    }
    Err(apart(offers))
}

/// Number of ranks before `me` that have the same adapters, and hence are on the same host.
pub(crate) fn local_rank(offers: &[Offer], me: Rank) -> usize {
    let adapters = |offer: &Offer| offer.ports.iter().map(|port| port.adapter).collect::<Vec<_>>();
    let mine = adapters(&offers[me]);
    offers[..me].iter().filter(|offer| adapters(offer) == mine).count()
}

fn by_network(ports: &[OfferedPort]) -> Vec<Key> {
    let key = |(number, port): (usize, &OfferedPort)| {
        // Ports whose network is not known are paired by number even so.
        let number = if port.network.prefix > 0 { 0 } else { number + 1 };
        // A port reaches others of its subnet with or without a GRH.
        let kind = if port.link == Link::InfiniBand { NetworkKind::Subnet } else { port.network.kind };
        (port.link as u8, port.partition, Network { kind, ..port.network }, number)
    };
    ports.iter().enumerate().map(key).collect()
}

fn by_number(ports: &[OfferedPort]) -> Vec<Key> {
    let routed = |port: &OfferedPort| match port.network.kind {
        NetworkKind::Subnet => port.network,
        kind => Network { kind, address: 0, prefix: 0 },
    };
    let class = |port: &OfferedPort| (port.link as u8, port.partition, routed(port));
    let key = |(at, port): (usize, &OfferedPort)| {
        let (link, partition, network) = class(port);
        (link, partition, network, ports[..at].iter().filter(|before| class(before) == class(port)).count())
    };
    ports.iter().enumerate().map(key).collect()
}

/// The networks in which all ranks have ports, with the number of ports that each rank has at least there. They have
/// one link type, and the order of rank 0's ports, the fastest first.
fn common(first: &[OfferedPort], keys: &[Vec<Key>]) -> Vec<(Key, usize)> {
    let mut order: Vec<usize> = (0..first.len()).collect();
    order.sort_by_key(|port| Reverse(speed(first[*port].rate)));
    let mut networks: Vec<(Key, usize)> = Vec::new();
    for port in order {
        let network = keys[0][port];
        let ports = keys.iter().map(|of_rank| of_rank.iter().filter(|key| **key == network).count()).min();
        let is_alike = networks.first().is_none_or(|(first, _)| first.0 == network.0);
        let is_new = networks.iter().all(|(known, _)| *known != network);
        if is_alike && is_new {
            networks.extend(ports.filter(|ports| *ports > 0).map(|ports| (network, ports)));
        }
    }
    networks
}

/// Sorts ports by speed and distance. Of several equally good first ports, the rank begins with the port number `turn`, if
/// the kernel says where they are.
fn nearest(all: &[OfferedPort], mut ports: Vec<usize>, turn: usize) -> Vec<usize> {
    let worth = |port: usize| (Reverse(speed(all[port].rate)), all[port].place);
    ports.sort_by_key(|port| worth(*port));
    let equal = ports.iter().take_while(|port| worth(**port) == worth(ports[0])).count();
    if equal > 0 && all[ports[0]].place != Place::Unknown {
        ports[..equal].rotate_left(turn % equal);
    }
    ports
}

/// The error of ranks that have no network in common. It names the first rank whose ports are in none of those that all
/// ranks before it have.
fn apart(offers: &[Offer]) -> VerbsError {
    let keys: Vec<Vec<Key>> = offers.iter().map(|offer| by_number(&offer.ports)).collect();
    // Each network of rank 0 is missing at some rank.
    let lacks = |network: &Key| keys.iter().position(|of_rank| !of_rank.contains(network));
    let rank = keys[0].iter().filter_map(lacks).max().unwrap_or(0);
    let ports = |rank: Rank| offers[rank].ports.iter().map(OfferedPort::describe).collect::<Vec<_>>().join(", ");
    let what = format!("the RDMA ports of rank 0 and rank {rank} cannot reach each other");
    let why = format!(
        "rank 0 has {}; rank {rank} has {}. No network is common to all ranks: name devices by TRANSOM_VERBS_DEVICE, GIDs by \
         TRANSOM_VERBS_GID or a partition by TRANSOM_VERBS_PKEY, or set TRANSOM_FABRIC=tcp",
        ports(0),
        ports(rank)
    );
    VerbsError::unusable(what, why)
}

impl OfferedPort {
    /// A usable port of this machine, whose interfaces have these addresses.
    pub fn new(device: &str, adapter: u64, choice: &Choice, interfaces: &[Interface]) -> Self {
        let Choice { port, place, rate, link, .. } = *choice;
        // A port without keys is in the default partition.
        let partition = if choice.pkey == 0 { u16::MAX } else { choice.pkey | FULL_MEMBER };
        OfferedPort {
            device: device.into(),
            port,
            adapter,
            place,
            rate,
            link,
            partition,
            network: network(choice, interfaces),
        }
    }

    fn describe(&self) -> String {
        let OfferedPort { device, port, link, partition, network, .. } = self;
        format!("{device}, port {port} ({link:?}, {}, partition {partition:#06x})", network.describe())
    }
}

impl Network {
    fn describe(&self) -> String {
        let address = Ipv6Addr::from(self.address);
        match (self.kind, self.prefix) {
            (NetworkKind::V4, 0) => "an IPv4 address".into(),
            (_, 0) => "an IPv6 address".into(),
            (NetworkKind::V4, prefix) => {
                format!("network {}/{}", address.to_ipv4_mapped().unwrap_or([0; 4].into()), prefix.saturating_sub(96))
            }
            (_, prefix) => format!("subnet {address}/{prefix}"),
        }
    }
}

/// The network of a port: by the subnet prefix on InfiniBand, by the address of the network interface on RoCE.
fn network(choice: &Choice, interfaces: &[Interface]) -> Network {
    let gid = u128::from_be_bytes(choice.gid.raw);
    let ip = Ipv6Addr::from(gid);
    let (kind, prefix) = match (choice.link, ip.to_ipv4_mapped()) {
        (Link::InfiniBand, _) if choice.global => (NetworkKind::RoutedSubnet, 64),
        (Link::InfiniBand, _) => (NetworkKind::Subnet, 64),
        (_, Some(v4)) => {
            (NetworkKind::V4, interfaces.iter().find(|at| at.address == v4).map_or(0, |at| 96 + at.prefix))
        }
        (_, None) => (NetworkKind::V6, interfaces.iter().find(|at| at.address == ip).map_or(0, |at| at.prefix)),
    };
    let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
    Network { kind, address: gid & mask, prefix }
}

impl Offer {
    /// Encodes the offer for the other ranks: never empty.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.is_named.into()];
        for port in &self.ports {
            let OfferedPort { device, place, link, network, .. } = port;
            // Names of devices have at most 63 bytes.
            let name = &device.as_bytes()[..device.len().min(255)];
            bytes.extend([port.port, *place as u8, *link as u8, network.kind as u8, network.prefix, name.len() as u8]);
            bytes.extend(port.partition.to_le_bytes());
            bytes.extend(port.rate.to_le_bytes());
            bytes.extend(port.adapter.to_le_bytes());
            bytes.extend(network.address.to_le_bytes());
            bytes.extend(name);
        }
        bytes
    }

    /// Decodes an offer; `None` if it is malformed, or offers no port.
    pub fn from_bytes(bytes: &[u8]) -> Option<Offer> {
        let (&named, mut bytes) = bytes.split_first()?;
        let mut ports = Vec::new();
        while !bytes.is_empty() {
            let (&[port, place, link, kind, prefix, len], rest) = bytes.split_first_chunk()?;
            let (partition, rest) = rest.split_first_chunk()?;
            let (rate, rest) = rest.split_first_chunk()?;
            let (adapter, rest) = rest.split_first_chunk()?;
            let (address, rest) = rest.split_first_chunk()?;
            let (name, rest) = rest.split_at_checked(len.into())?;
            let network = Network {
                kind: NetworkKind::from_byte(kind)?,
                address: u128::from_le_bytes(*address),
                prefix: Some(prefix).filter(|prefix| *prefix <= 128)?,
            };
            ports.push(OfferedPort {
                device: String::from_utf8(name.into()).ok()?,
                port,
                adapter: u64::from_le_bytes(*adapter),
                place: Place::from_byte(place)?,
                rate: u32::from_le_bytes(*rate),
                link: Link::from_byte(link)?,
                partition: u16::from_le_bytes(*partition),
                network,
            });
            bytes = rest;
        }
        (named < 2 && !ports.is_empty()).then_some(Offer { is_named: named == 1, ports })
    }
}

impl NetworkKind {
    fn from_byte(byte: u8) -> Option<Self> {
        use NetworkKind::*;
        [Subnet, RoutedSubnet, V4, V6].into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail::choose::Gid;
    use std::collections::BTreeSet;

    /// A device of a host: its name, the cores near it, its speed in Gb/s, and its address.
    type Device = (&'static str, Option<&'static str>, u32, At);

    #[derive(Clone, Copy)]
    enum At {
        InfiniBand(u64),
        /// A subnet that requires a GRH.
        Routed(u64),
        /// RoCE v2 with an IPv4 address in a network with that prefix; without a prefix the interface is not known.
        V4(&'static str, Option<u8>),
        V6(&'static str, Option<u8>),
    }
    use At::*;

    /// The offer of a rank on `host` that may run on some cores.
    fn offer(host: u64, devices: &[Device], allowed: std::ops::Range<usize>) -> Offer {
        let allowed: BTreeSet<usize> = allowed.collect();
        let port = |(at, (name, near, gigabits, address)): (usize, &Device)| {
            let (link, raw, global, prefix) = match *address {
                InfiniBand(subnet) => (Link::InfiniBand, u128::from(subnet) << 64 | 7, false, None),
                Routed(subnet) => (Link::InfiniBand, u128::from(subnet) << 64 | 7, true, None),
                V4(ip, prefix) => {
                    let ip: std::net::Ipv4Addr = ip.parse().unwrap();
                    (Link::RoceV2, ip.to_ipv6_mapped().to_bits(), true, prefix.map(|prefix| (ip.into(), prefix)))
                }
                V6(ip, prefix) => {
                    let ip: Ipv6Addr = ip.parse().unwrap();
                    (Link::RoceV2, ip.to_bits(), true, prefix.map(|prefix| (ip.into(), prefix)))
                }
            };
            let choice = Choice {
                device: at,
                place: Place::of(*near, &allowed),
                rate: gigabits * 1000,
                port: 1,
                lid: 1,
                mtu: 5,
                pkey_index: 0,
                pkey: 0xffff,
                gid: Gid { index: 0, raw: raw.to_be_bytes(), v2: true },
                global,
                link,
            };
            let interface = prefix.map(|(address, prefix)| Interface { name: "eth0".into(), address, prefix });
            OfferedPort::new(name, host << 8 | at as u64, &choice, &Vec::from_iter(interface))
        };
        Offer { is_named: false, ports: devices.iter().enumerate().map(port).collect() }
    }

    /// The devices that each rank uses as its rails, in order.
    fn chosen(offers: &[Offer]) -> Vec<String> {
        let names = |rank: Rank| {
            let rails = rails(offers, rank, 4).unwrap_or_else(|error| panic!("{error}"));
            rails.iter().map(|rail| &*offers[rank].ports[*rail].device).collect::<Vec<_>>().join(" ")
        };
        (0..offers.len()).map(names).collect()
    }

    /// Two sockets of 4 cores with two adapters each.
    fn four(at: impl Fn(u64) -> At) -> [Device; 4] {
        let near = |socket| Some(if socket == 0 { "0-3\n" } else { "4-7\n" });
        [("a", near(0), 200, at(0)), ("b", near(0), 200, at(1)), ("c", near(1), 200, at(2)), ("d", near(1), 200, at(3))]
    }

    #[test]
    fn rails_are_near_spread_and_in_one_network() {
        let one = |_| InfiniBand(0xfe80 << 48);
        let planes = |plane| InfiniBand(plane + 1);
        let [near, far] = [("near", Some("0-3"), 100, one(0)), ("far", Some("4-7"), 100, one(0))];
        let slow_near = ("slow", Some("0-3"), 25, one(0));
        let unknown = |name| (name, None, 100, one(0));
        let roce = |name, ip, prefix| (name, Some("0-3"), 100, V4(ip, prefix));
        let soft = |name, ip| (name, None, 2, V4(ip, Some(24)));
        for (what, offers, expected) in [
            (
                "ranks of a host begin with different near adapters, and go on with the far ones",
                vec![
                    offer(1, &four(one), 0..1),
                    offer(1, &four(one), 1..2),
                    offer(1, &four(one), 2..3),
                    offer(1, &four(one), 4..5),
                    offer(1, &four(one), 5..6),
                    offer(2, &four(one), 0..8),
                    offer(2, &four(one), 0..8),
                ],
                vec!["a b c d", "b a c d", "a b c d", "c d a b", "d c a b", "a b c d", "b c d a"],
            ),
            (
                "the first rails are in one subnet, whatever their numbers",
                vec![
                    offer(1, &[("x", None, 100, planes(0)), ("y", None, 100, planes(1))], 0..1),
                    offer(2, &[("y", None, 100, planes(1)), ("x", None, 100, planes(0))], 0..1),
                ],
                vec!["x y", "x y"],
            ),
            (
                "ports in a subnet that a rank does not have are no rails",
                vec![offer(1, &four(planes), 0..1), offer(2, &four(planes)[2..], 0..1)],
                vec!["c d", "c d"],
            ),
            (
                "ranks near one plane use the rails that all have",
                vec![offer(1, &four(planes), 0..1), offer(1, &four(planes), 4..5)],
                vec!["a b c d", "a b c d"],
            ),
            (
                "a faster adapter is preferred to a near one",
                vec![offer(1, &[slow_near, far, near], 0..1), offer(1, &[slow_near, far, near], 4..5)],
                vec!["near far slow", "far near slow"],
            ),
            (
                "adapters whose place is not known keep their order",
                vec![offer(1, &[unknown("x"), unknown("y")], 0..8), offer(1, &[unknown("x"), unknown("y")], 0..8)],
                vec!["x y", "x y"],
            ),
            (
                "a rank with fewer ports determines their number",
                vec![offer(1, &four(one), 0..1), offer(2, &[near, far], 4..5)],
                vec!["a b", "far near"],
            ),
            (
                "InfiniBand and RoCE are not mixed",
                vec![
                    offer(1, &[roce("r", "10.0.0.1", Some(24)), ("i", None, 400, one(0))], 0..1),
                    offer(2, &[roce("r", "10.0.0.2", Some(24)), ("i", None, 400, one(0))], 0..1),
                ],
                vec!["i", "i"],
            ),
            (
                "RoCE ports of one IP network",
                vec![
                    offer(1, &[roce("x", "10.0.0.1", Some(24)), roce("y", "10.0.0.2", Some(24))], 0..1),
                    offer(1, &[roce("x", "10.0.0.1", Some(24)), roce("y", "10.0.0.2", Some(24))], 0..1),
                    offer(2, &[roce("z", "10.0.1.1", Some(24)), roce("x", "10.0.0.3", Some(24))], 0..1),
                ],
                vec!["x", "y", "x"],
            ),
            (
                "RoCE ports that routers may connect are paired by number",
                vec![
                    offer(1, &[roce("x", "10.0.0.1", Some(31)), roce("y", "10.0.1.1", Some(31))], 0..1),
                    offer(1, &[roce("x", "10.0.0.1", Some(31)), roce("y", "10.0.1.1", Some(31))], 0..1),
                    offer(2, &[roce("x", "10.1.0.1", None), roce("y", "10.1.1.1", None)], 0..1),
                ],
                vec!["x y", "x y", "x y"],
            ),
            (
                "subnets of InfiniBand that routers may connect are paired by number",
                vec![
                    offer(1, &[("x", None, 100, Routed(1)), ("y", None, 100, Routed(2))], 0..1),
                    offer(2, &[("x", None, 100, Routed(3)), ("y", None, 100, Routed(4))], 0..1),
                ],
                vec!["x y", "x y"],
            ),
            (
                "ports of a subnet meet with and without a GRH",
                vec![
                    offer(1, &[("x", None, 100, Routed(1))], 0..1),
                    offer(2, &[("w", None, 100, InfiniBand(2)), ("x", None, 100, InfiniBand(1))], 0..1),
                ],
                vec!["x", "x"],
            ),
            (
                "Soft-RoCE on two interfaces of a host",
                vec![
                    offer(1, &[soft("rxe0", "10.77.0.1"), soft("rxe1", "10.77.1.1")], 0..8),
                    offer(1, &[soft("rxe0", "10.77.0.1"), soft("rxe1", "10.77.1.1")], 0..8),
                ],
                vec!["rxe0 rxe1", "rxe0 rxe1"],
            ),
            (
                "link-local addresses say nothing about networks",
                vec![
                    offer(1, &[("x", None, 100, V6("fe80::1", None)), ("y", None, 100, V6("fe80::2", None))], 0..1),
                    offer(2, &[("x", None, 100, V6("fe80::3", None)), ("y", None, 100, V6("fe80::4", None))], 0..1),
                ],
                vec!["x y", "x y"],
            ),
            (
                "IPv6 networks",
                vec![
                    offer(
                        1,
                        &[("x", None, 100, V6("fd00::1", Some(64))), ("y", None, 100, V6("fd01::1", Some(64)))],
                        0..1,
                    ),
                    offer(
                        2,
                        &[("y", None, 100, V6("fd01::2", Some(64))), ("x", None, 100, V6("fd00::2", Some(64)))],
                        0..1,
                    ),
                ],
                vec!["x y", "x y"],
            ),
        ] {
            assert_eq!(chosen(&offers), expected, "{what}");
        }
        assert_eq!(rails(&[offer(1, &four(one), 4..5)], 0, 1).unwrap(), [2], "one rail");
    }

    #[test]
    fn named_ports_are_the_rails() {
        let one = |_| InfiniBand(1);
        let named = |mut offer: Offer| {
            offer.is_named = true;
            offer
        };
        let offers = [named(offer(1, &four(one)[1..3], 4..5)), offer(2, &four(one), 4..5)];
        assert_eq!(chosen(&offers), ["b c", "a b c d"], "the job uses as many as all have");
        let planes = |plane| InfiniBand(plane + 1);
        let offers = [named(offer(1, &four(planes), 0..1)), named(offer(2, &four(one), 0..1))];
        assert_eq!(chosen(&offers), ["a b c d", "a b c d"], "whatever their networks");
        let roce = ("r", None, 100, V4("10.0.0.1", Some(24)));
        let [first, second] = [("i", None, 100, one(0)), ("j", None, 100, one(0))];
        let offers = [named(offer(1, &[first, second], 0..1)), offer(2, &[first, roce, second], 0..1)];
        assert_eq!(chosen(&offers), ["i j", "i j"], "of the named link type");
        let error = rails(&[named(offer(1, &[first], 0..1)), offer(2, &[roce], 0..1)], 1, 4).unwrap_err();
        assert!(error.to_string().contains("rank 0 and rank 1 cannot reach each other"), "{error}");
    }

    #[test]
    fn ranks_without_a_common_network_are_named() {
        let at = |name, at| offer(1, &[(name, None, 100, at)], 0..1);
        for (others, rank, parts) in [
            (
                vec![at("x", InfiniBand(1)), at("x", InfiniBand(1)), at("y", InfiniBand(2))],
                2,
                [
                    "rank 0 has x, port 1 (InfiniBand, subnet 0:0:0:1::/64, partition 0xffff)",
                    "rank 2 has y, port 1 (InfiniBand, subnet 0:0:0:2::/64, partition 0xffff)",
                ],
            ),
            (
                vec![at("x", V4("10.0.0.9", Some(24))), at("y", V6("fd00::1", None))],
                1,
                ["x, port 1 (RoceV2, network 10.0.0.0/24,", "y, port 1 (RoceV2, an IPv6 address,"],
            ),
            (
                vec![at("x", InfiniBand(1)), at("y", V4("10.0.0.9", None))],
                1,
                ["(InfiniBand", "(RoceV2, an IPv4 address"],
            ),
        ] {
            for me in 0..others.len() {
                let error = rails(&others, me, 4).unwrap_err().to_string();
                let ranks = format!("the RDMA ports of rank 0 and rank {rank} cannot reach each other");
                assert!(error.contains(&ranks) && parts.iter().all(|part| error.contains(part)), "{error}");
            }
        }
        // Any two ranks share a network here.
        let two =
            |one, other| offer(1, &[("x", None, 100, InfiniBand(one)), ("y", None, 100, InfiniBand(other))], 0..1);
        let error = rails(&[two(1, 2), two(2, 3), two(2, 1), two(1, 3)], 1, 4).unwrap_err().to_string();
        assert!(error.contains("of rank 0 and rank 3 cannot"), "{error}");
        let mut partitions = [at("x", InfiniBand(1)), at("x", InfiniBand(1))];
        partitions[1].ports[0].partition = 0x8002;
        assert!(rails(&partitions, 0, 4).unwrap_err().to_string().contains("partition 0x8002"));
    }

    #[test]
    fn local_rank_counts_ranks_with_the_same_adapters() {
        let one = |_| InfiniBand(1);
        let offers =
            [(1, 0), (2, 0), (1, 4), (1, 0), (2, 4)].map(|(host, core)| offer(host, &four(one), core..core + 1));
        assert_eq!([0, 1, 2, 3, 4].map(|me| local_rank(&offers, me)), [0, 0, 1, 2, 1]);
    }

    #[test]
    fn malformed_offers_are_refused() {
        let sent = Offer { is_named: true, ..offer(1, &four(|at| V4("10.0.0.1", Some(at as u8))), 0..1) };
        let bytes = sent.to_bytes();
        assert_eq!(Offer::from_bytes(&bytes), Some(sent));
        let whole = (bytes.len() - 1) / 4;
        for len in 0..bytes.len() {
            let is_whole = len > 1 && (len - 1) % whole == 0;
            assert_eq!(Offer::from_bytes(&bytes[..len]).is_some(), is_whole, "{len} bytes");
        }
        // Flag, place, link, kind of network, prefix, and a name that is no text.
        for (at, value) in [(0, 2), (2, 0), (3, 4), (4, 5), (5, 129), (whole, 0xff)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Offer::from_bytes(&bytes), None, "byte {at} is {value}");
        }
    }
}
