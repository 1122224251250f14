//! Which algorithm a collective takes: the first row of a table that fits.

use crate::algorithms::Algorithm;
use crate::plan::{Call, Shape};

/// A row: of calls of this name, up to so many ranks and bytes of a rank, this algorithm, if it can do the call.
struct Row(&'static str, usize, usize, &'static str);

const ANY: usize = usize::MAX;

/// Few ranks are better served by one round than by fewer messages; short data by few rounds; long data by few bytes. The last row
/// of a call can do all of it.
const TABLE: &[Row] = &[
    Row("barrier", ANY, ANY, "dissemination"),
    Row("broadcast", 4, ANY, "direct"),
    Row("broadcast", ANY, 128 << 10, "binomial"),
    Row("broadcast", ANY, ANY, "ring"),
    Row("reduce", ANY, 16 << 10, "binomial"),
    Row("reduce", 64, ANY, "pairwise"),
    Row("reduce", ANY, ANY, "binomial"),
    Row("all_reduce", ANY, 16 << 10, "recursive_doubling"),
    Row("all_reduce", 16, ANY, "pairwise"),
    Row("all_reduce", ANY, 1 << 20, "rabenseifner"),
    Row("all_reduce", ANY, ANY, "ring"),
    Row("all_reduce", ANY, ANY, "recursive_doubling"),
    Row("reduce_scatter", ANY, ANY, "pairwise"),
    Row("scan", ANY, ANY, "recursive_doubling"),
    Row("gather", 8, ANY, "direct"),
    Row("gather", ANY, 8 << 10, "binomial"),
    Row("gather", ANY, ANY, "direct"),
    Row("scatter", 8, ANY, "direct"),
    Row("scatter", ANY, 8 << 10, "binomial"),
    Row("scatter", ANY, ANY, "direct"),
    Row("all_gather", 8, ANY, "direct"),
    Row("all_gather", ANY, 8 << 10, "bruck"),
    Row("all_gather", ANY, ANY, "ring"),
    Row("all_to_all", 8, ANY, "pairwise"),
    Row("all_to_all", ANY, 256, "bruck"),
    Row("all_to_all", ANY, ANY, "pairwise"),
];

impl Call {
    /// Its name.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_collective::Call::Scan { exclusive: true }.name(), "scan");
    /// ```
    pub fn name(&self) -> &'static str {
        match self {
            Call::Barrier => "barrier",
            Call::Broadcast { .. } => "broadcast",
            Call::Reduce { .. } => "reduce",
            Call::AllReduce { .. } => "all_reduce",
            Call::ReduceScatter => "reduce_scatter",
            Call::Scan { .. } => "scan",
            Call::Gather { .. } => "gather",
            Call::Scatter { .. } => "scatter",
            Call::AllGather => "all_gather",
            Call::AllToAll => "all_to_all",
        }
    }
}

/// The algorithm of that name if one is asked for and can do the call, else that of the table. All ranks must ask for the
/// same.
///
/// # Examples
/// ```
/// use transom_collective::{Algorithm, Call, Shape, choose::best};
/// let shape = Shape { rank: 0, ranks: 100, len: 1 << 20, element: 8 };
/// assert_eq!(best(Call::AllGather, shape, None).name(), "ring");
/// assert_eq!(best(Call::AllGather, shape, Algorithm::named("bruck")).name(), "bruck");
/// assert_eq!(best(Call::AllGather, shape, Algorithm::named("rabenseifner")).name(), "ring"); // it cannot
/// ```
pub fn best(call: Call, shape: Shape, asked: Option<Algorithm>) -> Algorithm {
    let bytes = shape.len.saturating_mul(shape.element);
    let fits = |Row(name, ranks, most, _): &&Row| *name == call.name() && shape.ranks <= *ranks && bytes <= *most;
    let rows = TABLE.iter().filter(fits).filter_map(|Row(.., algorithm)| Algorithm::named(algorithm));
    asked
        .into_iter()
        .chain(rows)
        .find(|algorithm| algorithm.can(call, shape))
        .expect("the last row of a call can do it")
}

/// Algorithms by the names of calls, as a variable gives them: `all_reduce=ring,broadcast=binomial`.
///
/// # Errors
/// What is wrong, and what was expected.
///
/// # Examples
/// ```
/// use transom_collective::choose::parse;
/// let asked = parse("all_reduce=ring, broadcast=binomial").unwrap();
/// assert_eq!(asked[1].1.name(), "binomial");
/// assert_eq!(parse("sum=ring").unwrap_err(), "`sum` is no collective; there are barrier, broadcast, reduce, all_reduce, \
///     reduce_scatter, scan, gather, scatter, all_gather, all_to_all");
/// ```
pub fn parse(text: &str) -> Result<Vec<(&'static str, Algorithm)>, String> {
    let mut calls: Vec<&str> = TABLE.iter().map(|Row(call, ..)| *call).collect();
    calls.dedup();
    let pair = |pair: &str| {
        let (call, algorithm) = pair.split_once('=').ok_or_else(|| format!("`{pair}` is not CALL=ALGORITHM"))?;
        let (call, algorithm) = (call.trim(), algorithm.trim());
        let known = calls.iter().find(|known| **known == call);
        let call = known.ok_or_else(|| format!("`{call}` is no collective; there are {}", calls.join(", ")))?;
        let names = || Algorithm::all().map(|algorithm| algorithm.name()).collect::<Vec<_>>().join(", ");
        let algorithm = Algorithm::named(algorithm)
            .ok_or_else(|| format!("`{algorithm}` is no algorithm; there are {}", names()))?;
        Ok((*call, algorithm))
    };
    text.split(',').filter(|pair| !pair.trim().is_empty()).map(pair).collect()
}
