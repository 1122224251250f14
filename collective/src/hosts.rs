//! Which ranks are on which host.

/// A rank of the team, counted from 0.
pub type Rank = usize;

/// The hosts of a team: ranks of one share memory.
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
    /// By a name of each rank's host. Hosts are numbered in the order of their first ranks.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.ranks.len()
    }

    /// On which a rank is.
    pub fn host(&self, rank: Rank) -> usize {
        self.of[rank]
    }

    /// The ranks of one, in order.
    pub fn ranks(&self, host: usize) -> &[Rank] {
        &self.ranks[host]
    }

    /// Whether all ranks of a host are before those of the next.
    pub fn in_order(&self) -> bool {
        self.of.is_sorted()
    }

    /// Whether there are several, and ranks that share one.
    pub fn differ(&self) -> bool {
        1 < self.count() && self.count() < self.of.len()
    }
}
