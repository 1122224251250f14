//! The algorithms, a file each, and their names.

mod binomial;
mod bruck;
mod direct;
mod dissemination;
mod doubling;
mod neighbours;
mod pairwise;
mod rabenseifner;
mod ring;

pub use direct::{all_gather_v, gather_v, scatter_v};
pub use neighbours::{Grid, neighbours};
pub use pairwise::{all_to_all_v, reduce_scatter_v};

use crate::plan::{Call, Plan, Shape};

type Make = fn(Call, Shape) -> Option<Plan>;

/// How a collective is done.
#[derive(Clone, Copy)]
pub struct Algorithm(&'static (&'static str, Make));

/// Each makes plans of the calls that it knows.
static TABLE: [(&str, Make); 8] = [
    ("binomial", binomial::plan),
    ("bruck", bruck::plan),
    ("direct", direct::plan),
    ("dissemination", dissemination::plan),
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
    /// let shape = Shape { rank: 0, ranks: 4, len: 1, element: 8 };
    /// let ring = Algorithm::named("ring").unwrap();
    /// assert!(ring.can(Call::AllReduce { commutes: true }, shape));
    /// assert!(!ring.can(Call::AllReduce { commutes: false }, shape));
    /// ```
    pub fn can(&self, call: Call, shape: Shape) -> bool {
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
    /// let shape = Shape { rank: 3, ranks: 4, len: 1, element: 8 };
    /// let plan = Algorithm::named("dissemination").unwrap().plan(Call::Barrier, shape);
    /// assert_eq!(plan.rounds.len(), 2); // ceil(log2(4))
    /// assert_eq!(plan.rounds[0].sends[0].0, 0);
    /// ```
    pub fn plan(&self, call: Call, shape: Shape) -> Plan {
        (self.0.1)(call, shape).unwrap_or_else(|| panic!("{} cannot do {call:?} of {shape:?}", self.name()))
    }
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

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
