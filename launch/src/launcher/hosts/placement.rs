//! Placement of the ranks of a job on its hosts.

use super::HostList;
use crate::launcher::outcome::LaunchError;
use std::fmt;
use std::str::FromStr;
use transom_locks::Rank;

/// The order in which ranks fill the places of hosts.
///
/// # Examples
/// ```
/// use transom::MapBy;
/// assert_eq!("slot".parse(), Ok(MapBy::Slot));
/// assert_eq!("cyclic".parse(), Ok(MapBy::Node)); // Slurm's name
/// assert_eq!(MapBy::PerNode(2).to_string(), "ppr:2:node");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapBy {
    /// All places of a host, then those of the next: `slot`, or `block`.
    #[default]
    Slot,
    /// One place of each host in turn: `node`, or `cyclic`. A host whose places are taken is skipped.
    Node,
    /// This many ranks on each host, above 0, in blocks: `ppr:2:node`.
    PerNode(usize),
}

impl fmt::Display for MapBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapBy::Slot => f.write_str("slot"),
            MapBy::Node => f.write_str("node"),
            MapBy::PerNode(ranks) => write!(f, "ppr:{ranks}:node"),
        }
    }
}

impl FromStr for MapBy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            "slot" | "block" => Ok(MapBy::Slot),
            "node" | "cyclic" => Ok(MapBy::Node),
            other => {
                let per_node = other.strip_prefix("ppr:").and_then(|rest| rest.strip_suffix(":node"));
                let ranks = per_node.and_then(|ranks| ranks.parse().ok()).filter(|ranks| *ranks > 0);
                ranks.map(MapBy::PerNode).ok_or("expected slot, node, or ppr:N:node with N above 0")
            }
        }
    }
}

/// The host of each rank.
pub(crate) struct Placement {
    /// Hosts that have ranks, in the order of their lowest ranks. Rank 0 is on the first.
    hosts: Vec<OnHost>,
    /// Index in `hosts` of each rank, and its number among the ranks there.
    of: Vec<(usize, usize)>,
}

/// A host that has ranks.
pub(crate) struct OnHost {
    /// Index in the list of hosts.
    pub number: usize,
    /// Its ranks in ascending order; at least one.
    pub ranks: Vec<Rank>,
}

impl Placement {
    /// All ranks on one machine.
    pub fn here(ranks: usize, map: MapBy) -> Result<Self, LaunchError> {
        check(ranks, 1, map)?;
        Ok(Self::from_hosts(std::iter::repeat_n(0, ranks)))
    }

    pub fn on(hosts: &HostList, ranks: usize, map: MapBy) -> Result<Self, LaunchError> {
        let count = hosts.0.len();
        check(ranks, count, map)?;
        let even = |host| ranks / count + usize::from(host < ranks % count);
        let places = |host: usize| hosts.0[host].places.unwrap_or_else(|| even(host));
        if let MapBy::PerNode(each) = map {
            for (host, first) in hosts.0.iter().zip((0..ranks).step_by(each)) {
                let needed = each.min(ranks - first);
                if let Some(places) = host.places.filter(|places| *places < needed) {
                    return Err(LaunchError::PlacesOfHost { host: host.name.clone(), places, ranks: needed, map });
                }
            }
            return Ok(Self::from_hosts((0..ranks).map(|rank| rank / each)));
        }
        let all = (0..count).fold(0, |sum: usize, host| sum.saturating_add(places(host)));
        if all < ranks {
            return Err(LaunchError::Places { ranks, places: all });
        }
        if map == MapBy::Node {
            let turns = (0..ranks).flat_map(|turn| (0..count).filter(move |&host| turn < places(host)));
            return Ok(Self::from_hosts(turns.take(ranks)));
        }
        let blocks = (0..count).flat_map(|host| std::iter::repeat_n(host, places(host)));
        Ok(Self::from_hosts(blocks.take(ranks)))
    }

    /// The placement of ranks on hosts, given by the number of each rank's host.
    fn from_hosts(placed: impl Iterator<Item = usize>) -> Self {
        let (mut hosts, mut of) = (Vec::<OnHost>::new(), Vec::new());
        let mut indices = std::collections::HashMap::new();
        for (rank, number) in placed.enumerate() {
            let index = *indices.entry(number).or_insert_with(|| {
                hosts.push(OnHost { number, ranks: Vec::new() });
                hosts.len() - 1
            });
            of.push((index, hosts[index].ranks.len()));
            hosts[index].ranks.push(rank);
        }
        Placement { hosts, of }
    }

    /// The hosts that have ranks.
    pub fn hosts(&self) -> &[OnHost] {
        &self.hosts
    }

    /// The host of a rank.
    pub fn host(&self, rank: Rank) -> &OnHost {
        &self.hosts[self.of[rank].0]
    }

    /// The number of a rank among the ranks of its host.
    pub fn local_rank(&self, rank: Rank) -> usize {
        self.of[rank].1
    }
}

/// Refuses a mapping whose number of ranks per host is too small for the job.
fn check(ranks: usize, hosts: usize, map: MapBy) -> Result<(), LaunchError> {
    match map {
        MapBy::PerNode(each) if each.saturating_mul(hosts) < ranks => Err(LaunchError::PerNode { ranks, each, hosts }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(list: &str, ranks: usize, map: &str) -> Result<Vec<usize>, String> {
        let placement = Placement::on(&list.parse().unwrap(), ranks, map.parse().unwrap());
        let placement = placement.map_err(|error| error.to_string())?;
        Ok((0..ranks).map(|rank| placement.host(rank).number).collect())
    }

    #[test]
    fn ranks_are_placed_by_each_mapping() {
        for (list, ranks, map, placed) in [
            ("a,b", 4, "slot", &[0, 0, 1, 1][..]),
            ("a,b,c", 7, "block", &[0, 0, 0, 1, 1, 2, 2]),
            ("a,b,c", 2, "slot", &[0, 1]),
            ("a:4,b:2", 5, "slot", &[0, 0, 0, 0, 1]),
            ("a:18446744073709551615", 2, "slot", &[0, 0]),
            ("a,b", 4, "node", &[0, 1, 0, 1]),
            ("a,b,c", 7, "cyclic", &[0, 1, 2, 0, 1, 2, 0]),
            ("a:3,b:1,c:2", 6, "node", &[0, 1, 2, 0, 2, 0]),
            ("a:18446744073709551615,b:1", 3, "node", &[0, 1, 0]),
            ("a,b,c", 4, "ppr:2:node", &[0, 0, 1, 1]),
            ("a:4,b:4", 4, "ppr:2:node", &[0, 0, 1, 1]),
            ("a:2,b:1,c:1", 3, "ppr:2:node", &[0, 0, 1]),
            ("a,b", 3, "ppr:18446744073709551615:node", &[0, 0, 0]),
        ] {
            assert_eq!(place(list, ranks, map).as_deref(), Ok(placed), "{list} {map}");
        }
    }

    #[test]
    fn too_many_ranks_are_refused() {
        let full = "7 ranks do not fit the 6 places of the hosts; give more (`a:4,b:3`), leave the numbers out (`a,b`), \
                    or start 6 ranks";
        assert_eq!(place("a:4,b:2", 7, "slot"), Err(full.to_owned()));
        assert_eq!(place("a:4,b:2", 7, "node"), Err(full.to_owned()));
        let each = "5 ranks do not fit 2 hosts with 2 ranks each (ppr:2:node); use ppr:3:node, or start 4 ranks";
        assert_eq!(place("a,b", 5, "ppr:2:node"), Err(each.to_owned()));
        assert_eq!(place("a:9,b:9", 5, "ppr:2:node"), Err(each.to_owned()));
        let places =
            "2 ranks of ppr:2:node do not fit the 1 places of host b; give it more (`b:2`), or use slot or node";
        assert_eq!(place("a:9,b:1,c:9", 4, "ppr:2:node"), Err(places.to_owned()));
        assert!(Placement::here(3, MapBy::PerNode(3)).is_ok() && Placement::here(3, MapBy::PerNode(2)).is_err());
    }

    #[test]
    fn local_ranks_follow_the_placement() {
        let placement = Placement::on(&"a:1,b:2".parse().unwrap(), 3, MapBy::Node).unwrap();
        let ranks: Vec<_> = placement.hosts().iter().map(|host| (host.number, host.ranks.clone())).collect();
        assert_eq!(ranks, [(0, vec![0]), (1, vec![1, 2])]);
        let placement = Placement::on(&"a,b".parse().unwrap(), 4, MapBy::Node).unwrap();
        assert_eq!([0, 1, 2, 3].map(|rank| placement.local_rank(rank)), [0, 0, 1, 1]);
        assert_eq!(placement.host(3).ranks, [1, 3]);
    }

    #[test]
    fn malformed_mappings_are_refused() {
        for wrong in ["", "core", "ppr", "ppr:2", "ppr:0:node", "ppr:-1:node", "ppr:2:socket", "node:2"] {
            assert_eq!(wrong.parse::<MapBy>(), Err("expected slot, node, or ppr:N:node with N above 0"), "{wrong}");
        }
        for map in [MapBy::Slot, MapBy::Node, MapBy::PerNode(7)] {
            assert_eq!(map.to_string().parse(), Ok(map));
        }
    }
}
