//! The algorithms, a file each, and their names.

mod binomial;
mod bruck;
mod direct;
mod dissemination;
mod doubling;
mod leaders;
mod neighbours;
mod pairwise;
mod rabenseifner;
mod ring;

pub use direct::{all_gather_v, gather_v, scatter_v};
pub use leaders::{ByHosts, Stage, by_hosts};
pub use neighbours::{Grid, neighbours};
pub use pairwise::{all_to_all_v, reduce_scatter_v};

use crate::plan::{Call, Plan, Shape};

type Make = fn(Call, Shape<'_>) -> Option<Plan>;

/// How a collective is done.
#[derive(Clone, Copy)]
pub struct Algorithm(&'static (&'static str, Make));

/// Each makes plans of the calls that it knows. A board is memory that ranks share: calls that go through it have no plan.
static TABLE: [(&str, Make); 10] = [
    ("binomial", binomial::plan),
    ("board", |_, _| None),
    ("bruck", bruck::plan),
    ("direct", direct::plan),
    ("dissemination", dissemination::plan),
    ("leaders", leaders::plan),
    ("pairwise", pairwise::plan),
    ("rabenseifner", rabenseifner::plan),
    ("recursive_doubling", doubling::plan),
    ("ring", ring::plan),
];

impl Algorithm {
    /// All of them.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// assert!(Algorithm::all().any(|algorithm| algorithm.name() == "ring"));
    /// ```
    pub fn all() -> impl Iterator<Item = Algorithm> {
        TABLE.iter().map(Algorithm)
    }

    /// The one of this name.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// assert_eq!(Algorithm::named("bruck").unwrap().name(), "bruck");
    /// assert!(Algorithm::named("guessing").is_none());
    /// ```
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::all().find(|algorithm| algorithm.name() == name)
    }

    /// Its name.
    ///
    /// # Examples
    /// See [`named`](Self::named).
    pub fn name(&self) -> &'static str {
        self.0.0
    }

    /// Whether it can do that.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::{Algorithm, Call, Shape};
    /// let shape = Shape { rank: 0, ranks: 4, len: 1, element: 8, hosts: None };
    /// let ring = Algorithm::named("ring").unwrap();
    /// assert!(ring.can(Call::AllReduce { commutes: true }, shape));
    /// assert!(!ring.can(Call::AllReduce { commutes: false }, shape));
    /// ```
    pub fn can(&self, call: Call, shape: Shape<'_>) -> bool {
        (self.0.1)(call, shape).is_some()
    }

    /// What the rank does.
    ///
    /// # Panics
    /// If it cannot do that; see [`can`](Self::can).
    ///
    /// # Examples
    /// ```
    /// use transom_collective::{Algorithm, Call, Shape};
    /// let shape = Shape { rank: 3, ranks: 4, len: 1, element: 8, hosts: None };
    /// let plan = Algorithm::named("dissemination").unwrap().plan(Call::Barrier, shape);
    /// assert_eq!(plan.rounds.len(), 2); // ceil(log2(4))
    /// assert_eq!(plan.rounds[0].sends[0].0, 0);
    /// ```
    pub fn plan(&self, call: Call, shape: Shape<'_>) -> Plan {
        (self.0.1)(call, shape).unwrap_or_else(|| panic!("{} cannot do {call:?} of {shape:?}", self.name()))
    }
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Eq for Algorithm {}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

/// The place of a rank in a team that is turned so that the root is the first.
fn turned(rank: usize, root: usize, ranks: usize) -> usize {
    (rank + ranks - root) % ranks
}

/// The rank at that place.
fn turned_back(place: usize, root: usize, ranks: usize) -> usize {
    (place + root) % ranks
}
