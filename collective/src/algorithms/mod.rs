//! The algorithms, one file each, and their names.

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
pub use leaders::{Hierarchical, Stage, by_hosts};
pub use neighbours::{Grid, neighbours};
pub use pairwise::{Layout, all_to_all_sections, all_to_all_v, reduce_scatter_v};

use crate::plan::{Call, Plan, Shape};

type Make = fn(Call, Shape<'_>) -> Option<Plan>;
type Row = (&'static str, Make);

/// An algorithm for collectives, displayed as rules name it.
#[derive(Clone, Copy)]
pub struct Algorithm {
    row: &'static Row,
    /// Algorithm between leaders of hosts, if named.
    between: Option<&'static Row>,
}

/// Name and planner of each algorithm. `board` is shared memory; its calls have no plan of messages.
static TABLE: [Row; 10] = [
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
    /// The shared-memory algorithm, for ranks on one host.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// assert_eq!(Algorithm::BOARD.name(), "board");
    /// ```
    pub const BOARD: Algorithm = Algorithm { row: &TABLE[1], between: None };

    /// All algorithms; `leaders` without a chosen algorithm between leaders.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// assert!(Algorithm::all().any(|algorithm| algorithm.name() == "ring"));
    /// ```
    pub fn all() -> impl Iterator<Item = Algorithm> {
        TABLE.iter().map(|row| Algorithm { row, between: None })
    }

    /// The algorithm with this name, or `None`. `leaders:NAME` also chooses the algorithm between leaders.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// assert_eq!(Algorithm::named("bruck").unwrap().name(), "bruck");
    /// assert_eq!(Algorithm::named("leaders:ring").unwrap().to_string(), "leaders:ring");
    /// for none in ["guessing", "ring:bruck", "leaders:leaders", "leaders:board"] {
    ///     assert!(Algorithm::named(none).is_none());
    /// }
    /// ```
    pub fn named(name: &str) -> Option<Algorithm> {
        let row = |name: &str| TABLE.iter().find(|(known, _)| *known == name);
        match name.split_once(':') {
            None => Some(Algorithm { row: row(name)?, between: None }),
            Some(("leaders", between)) => {
                let between = row(between).filter(|_| Algorithm::between_leaders().any(|known| known == between))?;
                Some(Algorithm { row: row("leaders")?, between: Some(between) })
            }
            Some(_) => None,
        }
    }

    /// The names allowed after `leaders:`.
    pub(crate) fn between_leaders() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|(name, _)| *name).filter(|name| !["board", "leaders"].contains(name))
    }

    /// The name, without the algorithm between leaders.
    ///
    /// # Examples
    /// See [`named`](Self::named).
    pub fn name(&self) -> &'static str {
        self.row.0
    }

    /// The algorithm between leaders, if named.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Algorithm;
    /// let between = |name| Algorithm::named(name).unwrap().between();
    /// assert_eq!((between("leaders:ring"), between("leaders")), (Algorithm::named("ring"), None));
    /// ```
    pub fn between(&self) -> Option<Algorithm> {
        self.between.map(|row| Algorithm { row, between: None })
    }

    fn make(&self, call: Call, shape: Shape<'_>) -> Option<Plan> {
        match self.between() {
            Some(between) => leaders::plan_by(call, shape, Some(between)),
            None => (self.row.1)(call, shape),
        }
    }

    /// Returns whether the algorithm supports a call of this shape.
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
        self.make(call, shape).is_some()
    }

    /// The plan of rank `shape.rank`.
    ///
    /// # Panics
    /// If the algorithm does not support the call; see [`can`](Self::can).
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
        self.make(call, shape).unwrap_or_else(|| {
            panic!("algorithm {self} does not support {call:?} with {shape:?}; check with `can` first")
        })
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        self.between.map_or(Ok(()), |(between, _)| write!(f, ":{between}"))
    }
}

impl std::fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Eq for Algorithm {}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Self) -> bool {
        let names = |algorithm: &Self| (algorithm.name(), algorithm.between.map(|(name, _)| *name));
        names(self) == names(other)
    }
}

/// The place of a rank in the rotation that puts the root at place 0.
fn turned(rank: usize, root: usize, ranks: usize) -> usize {
    (rank + ranks - root) % ranks
}

/// The rank at a place of that rotation.
fn turned_back(place: usize, root: usize, ranks: usize) -> usize {
    (place + root) % ranks
}
