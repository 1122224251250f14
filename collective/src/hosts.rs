//! Placement of ranks on hosts.

/// A rank of the team, from 0.
pub type Rank = usize;

/// The hosts of a team. Ranks on one host share memory.
///
/// # Examples
/// ```
/// // In `transom`: `let hosts = world.hosts();`
/// use transom_collective::Hosts;
/// let hosts = Hosts::of(&["a", "b", "a"]);
/// assert_eq!((hosts.count(), hosts.ranks(0)), (2, &[0, 2][..]));
/// assert_eq!((hosts.host(1), hosts.in_order()), (1, false));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hosts {
    of: Box<[usize]>,
    ranks: Box<[Vec<Rank>]>,
}

impl Hosts {
    /// Groups ranks by the name of their host. Hosts are numbered in the order of their lowest ranks.
    pub fn of<H: Eq + std::hash::Hash>(names: &[H]) -> Hosts {
        let mut numbers = std::collections::HashMap::new();
        let mut ranks: Vec<Vec<Rank>> = Vec::new();
        let number = |(rank, name)| {
            let host = *numbers.entry(name).or_insert(ranks.len());
            match ranks.get_mut(host) {
                Some(ranks) => ranks.push(rank),
                None => ranks.push(vec![rank]),
            }
            host
        };
        let of = names.iter().enumerate().map(number).collect();
        Hosts { of, ranks: ranks.into() }
    }

    /// The number of hosts.
    pub fn count(&self) -> usize {
        self.ranks.len()
    }

    /// The host of a rank.
    pub fn host(&self, rank: Rank) -> usize {
        self.of[rank]
    }

    /// The ranks of a host, in ascending order.
    pub fn ranks(&self, host: usize) -> &[Rank] {
        &self.ranks[host]
    }

    /// Returns whether the ranks of every host precede those of the next host.
    pub fn in_order(&self) -> bool {
        self.of.is_sorted()
    }

    /// Returns whether there are several hosts and at least one of them has several ranks.
    pub fn differ(&self) -> bool {
        1 < self.count() && self.count() < self.of.len()
    }
}
