//! Ports that cannot reach each other, found from the cards of all ranks at the start.

use super::address::{Card, Destination};
use crate::rail::{FULL_MEMBER, Link};
use std::net::Ipv6Addr;
use std::time::Duration;
use transom_locks::Rank;

/// Two ranks whose ports cannot reach each other, and the reason. All ranks find the same two.
///
/// A difference that this finds is certain. Equal values are no proof: two subnets may have the same prefix.
pub(super) fn unreached(cards: &[Card]) -> Option<(Rank, Rank, String)> {
    let first = cards.first()?;
    let differs = cards.iter().enumerate().find_map(|(rank, card)| Some((0, rank, difference(first, card)?)));
    differs.or_else(|| {
        // Limited members of a partition reach only its full members.
        let mut limited = cards.iter().enumerate().filter(|(_, card)| card.pkey != 0 && card.pkey & FULL_MEMBER == 0);
        let ((one, card), (other, _)) = (limited.next()?, limited.next()?);
        Some((one, other, format!("both are limited members of the partition {:#06x}", card.pkey | FULL_MEMBER)))
    })
}

/// The reason why two ports cannot reach each other, if it is known.
fn difference(one: &Card, other: &Card) -> Option<String> {
    let partition = |card: &Card| card.pkey | FULL_MEMBER;
    if one.pkey != 0 && other.pkey != 0 && partition(one) != partition(other) {
        return Some(format!("they are in the partitions {:#06x} and {:#06x}", partition(one), partition(other)));
    }
    let [one_gid, other_gid] = [one, other].map(|card| Ipv6Addr::from(card.address.datagrams.gid));
    let subnet = |gid: Ipv6Addr| gid.to_bits() >> 64;
    if one.link == Link::InfiniBand as u8 {
        // Packets with a GRH may pass a router.
        let routed = one.global && other.global;
        return (!routed && subnet(one_gid) != subnet(other_gid))
            .then(|| format!("they are in two subnets (GIDs {one_gid} and {other_gid})"));
    }
    let is_v4 = |gid: Ipv6Addr| gid.to_ipv4_mapped().is_some();
    (is_v4(one_gid) != is_v4(other_gid))
        .then(|| format!("one has an IPv4 address, the other IPv6 ({one_gid} and {other_gid})"))
}

/// Describes this rank's port and that of a peer whose datagrams did not arrive for `waited`, and says what to check.
pub(super) fn silence(peer: Rank, waited: Duration, link: Link, pkey: u16, ports: [Destination; 2]) -> String {
    let [mine, theirs] = ports.map(|Destination { gid, lid, .. }| {
        let gid = Ipv6Addr::from(gid);
        if link == Link::InfiniBand { format!("LID {lid}, GID {gid}") } else { format!("GID {gid}") }
    });
    let check = match link {
        Link::InfiniBand => "are both ports in one subnet and partition, and is the subnet manager running?",
        Link::RoceV1 => "are both ports in one Ethernet network and VLAN? Routers do not forward RoCE v1.",
        Link::RoceV2 => {
            "is UDP port 4791 open between the hosts, and are both addresses in networks that reach each other (VLAN, routes)?"
        }
    };
    format!(
        "no datagram of rank {peer} arrived for {waited:?}, though its process runs. This port: {mine}; partition key \
         {pkey:#06x}. The port of rank {peer}: {theirs}. Check: {check} `TRANSOM_FABRIC=tcp` does without RDMA"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::address::Address;
    use crate::rail::Writes;
    use crate::settings::Settings;

    const V4: u128 = 0xffff_0a00_0001;
    const LOCAL: u128 = 0xfe80 << 112 | 1;

    fn card(link: Link, gid: u128, pkey: u16) -> Card {
        let datagrams = Destination { gid: gid.to_be_bytes(), lid: 1, queue_pair: 1, key: 1 };
        let address = Address { datagrams, secret: [0; 16], mtu: 5, responder_resources: 1, initiator_depth: 1 };
        let writes = Writes::promised(Settings::default().word_write, false);
        Card { address, link: link as u8, adapter: 1, paths: 0, writes, pkey, global: false, messages: 0 }
    }

    #[test]
    fn ports_that_cannot_meet_are_named() {
        let infiniband = |gid, pkey| card(Link::InfiniBand, gid, pkey);
        let roce = |gid| card(Link::RoceV2, gid, 0xffff);
        let (here, there) = (LOCAL, LOCAL + (7 << 64));
        for (cards, expected) in [
            (vec![infiniband(here, 0x8001), infiniband(here + 1, 0x8001)], None),
            (vec![infiniband(here, 0x8001), infiniband(here, 0x0001)], None),
            (vec![infiniband(here, 0), infiniband(here, 0x8001)], None),
            (
                vec![infiniband(here, 0x8001), infiniband(here, 0x8001), infiniband(here, 0x0002)],
                Some((0, 2, "the partitions 0x8001 and 0x8002")),
            ),
            (
                vec![infiniband(here, 0x8001), infiniband(here, 1), infiniband(here, 1)],
                Some((1, 2, "limited members of the partition 0x8001")),
            ),
            (
                vec![infiniband(here, 0x8001), infiniband(there, 0x8001)],
                Some((0, 1, "two subnets (GIDs fe80::1 and fe80:0:0:7::1)")),
            ),
            (vec![roce(V4), roce(V4 + 9)], None),
            (vec![roce(LOCAL), roce(there)], None),
            (vec![roce(V4), roce(V4), roce(LOCAL)], Some((0, 2, "(::ffff:10.0.0.1 and fe80::1)"))),
        ] {
            let found = unreached(&cards);
            let same = match (&found, expected) {
                (Some((one, other, why)), Some((rank, peer, part))) => {
                    (*one, *other) == (rank, peer) && why.contains(part)
                }
                (found, expected) => found.is_none() && expected.is_none(),
            };
            assert!(same, "found {found:?}, expected {expected:?}");
        }
        let routed = |gid| Card { global: true, ..infiniband(gid, 0x8001) };
        assert_eq!(unreached(&[routed(here), routed(there)]), None);
    }

    #[test]
    fn silent_peer_is_described_by_its_link() {
        let port = |gid: u128, lid| Destination { gid: gid.to_be_bytes(), lid, queue_pair: 1, key: 1 };
        let said = |link, gid| silence(3, Duration::from_secs(20), link, 0x8001, [port(gid, 7), port(gid + 1, 9)]);
        let begin = "no datagram of rank 3 arrived for 20s, though its process runs. This port: ";
        let end = " `TRANSOM_FABRIC=tcp` does without RDMA";
        for (link, gid, between) in [
            (
                Link::InfiniBand,
                LOCAL,
                "LID 7, GID fe80::1; partition key 0x8001. The port of rank 3: LID 9, GID fe80::2. Check: are both ports in \
                 one subnet and partition, and is the subnet manager running?",
            ),
            (
                Link::RoceV1,
                LOCAL,
                "GID fe80::1; partition key 0x8001. The port of rank 3: GID fe80::2. Check: are both ports in one Ethernet \
                 network and VLAN? Routers do not forward RoCE v1.",
            ),
            (
                Link::RoceV2,
                V4,
                "GID ::ffff:10.0.0.1; partition key 0x8001. The port of rank 3: GID ::ffff:10.0.0.2. Check: is UDP port 4791 \
                 open between the hosts, and are both addresses in networks that reach each other (VLAN, routes)?",
            ),
        ] {
            assert_eq!(said(link, gid), format!("{begin}{between}{end}"));
        }
    }
}
