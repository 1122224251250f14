//! Communication patterns of programs. Patterns of the NAS parallel benchmarks follow their published set-up
//! routines. Those of NAMD and SMG2000 follow their known neighbourhoods. Computation is replaced by a delay.

use crate::wire::Rank;

/// One step of a rank: concurrent sends and receives, then a computation.
#[derive(Debug, Default)]
pub struct Step {
    /// Destination and length in bytes of each send.
    pub sends: Vec<(Rank, usize)>,
    /// Source of each receive.
    pub receives: Vec<Rank>,
    /// Time of the computation in nanoseconds.
    pub compute: u64,
}

/// A program; [`ALL`] lists the programs available.
///
/// ```
/// use transom_channel::sim::skeletons::ALL;
///
/// let cg = ALL.iter().find(|skeleton| skeleton.name == "CG").unwrap();
/// // Rank 0 of 4 exchanges with its column's other half, and transposes with no other rank.
/// let peers = (cg.iteration)(0, 4).into_iter().flat_map(|step| step.receives);
/// assert_eq!(peers.collect::<Vec<_>>(), [1, 1]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Skeleton {
    /// Name of the program.
    pub name: &'static str,
    /// True if the number of ranks must be a square.
    pub square: bool,
    /// Number of iterations.
    pub iterations: u32,
    /// Steps of one rank in an iteration: its arguments are the rank and the number of ranks.
    pub iteration: fn(Rank, Rank) -> Vec<Step>,
    /// Number of reductions among all ranks at the start and at the end: communication outside the
    /// iterations.
    pub reductions: u32,
    /// Measurements in the slides of MVAPICH-Aptus (Koop, Jones, Panda 2008) on 512 processes, or 484 where
    /// the number must be a square: average peers of a process by shared memory, datagrams, connections and
    /// rings.
    pub slides: [f64; 4],
}

/// The programs of the slides.
///
/// ```
/// let names = transom_channel::sim::skeletons::ALL.map(|skeleton| skeleton.name);
/// assert_eq!(names, ["BT", "CG", "EP", "FT", "MG", "LU", "SP", "NAMD", "SMG2000"]);
/// ```
pub const ALL: [Skeleton; 9] = [
    skeleton("BT", true, 60, bt, [4.11, 20.17, 10.60, 7.88]),
    skeleton("CG", false, 100, cg, [3.00, 6.94, 2.94, 2.94]),
    skeleton("EP", false, 1, ep, [3.00, 6.00, 0.00, 0.00]),
    skeleton("FT", false, 52, ft, [7.00, 504.00, 16.00, 8.00]),
    skeleton("MG", false, 60, mg, [4.31, 9.00, 5.63, 5.63]),
    skeleton("LU", false, 40, lu, [3.75, 7.06, 2.23, 2.23]),
    skeleton("SP", true, 60, sp, [4.11, 20.17, 10.62, 7.88]),
    skeleton("NAMD", false, 60, namd, [6.30, 120.80, 16.47, 8.00]),
    skeleton("SMG2000", false, 30, smg, [4.25, 120.19, 16.34, 8.00]),
];

const fn skeleton(
    name: &'static str,
    square: bool,
    iterations: u32,
    iteration: fn(Rank, Rank) -> Vec<Step>,
    slides: [f64; 4],
) -> Skeleton {
    Skeleton { name, square, iterations, iteration, reductions: 6, slides }
}

/// Exchange in both directions with each of these peers.
#[inline]
fn with(peers: impl IntoIterator<Item = Rank>, bytes: usize) -> Step {
    let receives: Vec<Rank> = peers.into_iter().collect();
    Step { sends: receives.iter().map(|peer| (*peer, bytes)).collect(), receives, compute: 0 }
}

#[inline]
fn compute(nanoseconds: u64) -> Step {
    Step { compute: nanoseconds, ..Step::default() }
}

/// Reduction of a few words among all ranks: recursive doubling. If the number of ranks is no power of two,
/// the first ranks combine in pairs beforehand, and one of each pair then waits for the result.
#[inline]
pub(super) fn reduce(rank: Rank, ranks: Rank) -> Vec<Step> {
    const BYTES: usize = 40;
    let most = 1 << ranks.ilog2();
    let beyond = ranks - most;
    let is_paired = rank < 2 * beyond;
    let one_way = |to: Option<Rank>, from: Option<Rank>| Step {
        sends: to.map(|to| (to, BYTES)).into_iter().collect(),
        receives: from.into_iter().collect(),
        compute: 0,
    };
    let mut steps = Vec::new();
    if beyond > 0 {
        // Barrier by dissemination.
        let steps_of = (0..=most.ilog2()).map(|bit| 1 << bit);
        steps.extend(steps_of.map(|by| one_way(Some((rank + by) % ranks), Some((rank + ranks - by) % ranks))));
    }
    if is_paired && rank.is_multiple_of(2) {
        steps.extend([one_way(Some(rank + 1), None), one_way(None, Some(rank + 1))]);
        return steps;
    }
    let number = match is_paired {
        true => {
            steps.push(one_way(None, Some(rank - 1)));
            rank / 2
        }
        false => rank - beyond,
    };
    for bit in 0..most.ilog2() {
        let other = number ^ (1 << bit);
        steps.push(with([if other < beyond { 2 * other + 1 } else { other + beyond }], BYTES));
    }
    if is_paired {
        steps.push(one_way(Some(rank - 1), None));
    }
    steps
}

/// Multipartition on a square of ranks: faces with six neighbours, then a sweep each way in three directions.
#[inline]
fn multipartition(rank: Rank, ranks: Rank, face: usize, line: usize, work: u64) -> Vec<Step> {
    let p = ranks.isqrt();
    let (i, j) = (rank % p, rank / p);
    let at = |i: Rank, j: Rank| i % p + p * (j % p);
    let successors = [at(i + 1, j), at(i, j + 1), at(i + p - 1, j + 1)];
    let predecessors = [at(i + p - 1, j), at(i, j + p - 1), at(i + 1, j + p - 1)];
    let mut steps = vec![with(successors.into_iter().chain(predecessors), face), compute(work)];
    for (next, last) in successors.into_iter().zip(predecessors) {
        for (to, from) in [(next, last), (last, next)] {
            steps.push(Step { sends: vec![(to, line)], receives: vec![from], compute: work / 6 });
        }
    }
    steps
}

#[inline]
fn bt(rank: Rank, ranks: Rank) -> Vec<Step> {
    multipartition(rank, ranks, 6000, 3000, 60_000)
}

#[inline]
fn sp(rank: Rank, ranks: Rank) -> Vec<Step> {
    multipartition(rank, ranks, 5000, 1500, 40_000)
}

/// Sums along a row of the matrix, by halves, and the exchange of the transposed part.
#[inline]
fn cg(rank: Rank, ranks: Rank) -> Vec<Step> {
    let bits = ranks.ilog2();
    let (columns, rows) = (1 << bits.div_ceil(2), 1 << (bits / 2));
    let row = rank / columns * columns;
    let other = match columns == rows {
        true => rank % rows * rows + rank / rows,
        false => (rank / 2 % rows * rows + rank / 2 / rows) * 2 + rank % 2,
    };
    let mut steps = vec![compute(30_000)];
    for bytes in [2400, 8] {
        steps.extend((0..columns.ilog2()).map(|bit| with([row + ((rank % columns) ^ (1 << bit))], bytes)));
        if bytes > 8 && other != rank {
            steps.push(with([other], bytes));
        }
    }
    steps
}

#[inline]
fn ep(_: Rank, _: Rank) -> Vec<Step> {
    vec![compute(1_000_000)]
}

/// All-to-all exchange, one peer after the other.
#[inline]
fn ft(rank: Rank, ranks: Rank) -> Vec<Step> {
    let mut steps = vec![compute(200_000)];
    steps.extend((1..ranks).map(|by| with([rank ^ by], 1024)));
    steps
}

/// Levels of a multigrid, down and up: neighbours among the ranks that hold part of a level, further apart at
/// coarser levels.
#[inline]
fn mg(rank: Rank, ranks: Rank) -> Vec<Step> {
    const LEVELS: u32 = 9;
    let bits = ranks.ilog2();
    let x = bits / 3;
    let y = (bits - x) / 2;
    let size = [1 << x, 1 << y, 1 << (bits - x - y)];
    let place = [rank % size[0], rank / size[0] % size[1], rank / (size[0] * size[1])];
    let at = |place: [Rank; 3]| place[0] + size[0] * (place[1] + size[1] * place[2]);
    let mut levels = Vec::new();
    for level in 0..LEVELS {
        // Cells along each axis: where there are fewer cells than ranks, some ranks hold none.
        let cells = 1 << (LEVELS - level);
        let stride = size.map(|size| (size / cells).max(1));
        if (0..3).any(|axis| !(place[axis] + 1).is_multiple_of(stride[axis])) {
            break;
        }
        let bytes = (8usize << (2 * (LEVELS - level))).div_ceil((size[0] * size[1]) as usize).max(8);
        levels.push((0..3).map(move |axis| (axis, stride[axis], bytes)).collect::<Vec<_>>());
    }
    let exchange = |(axis, stride, bytes): (usize, Rank, usize)| {
        let moved = |by: Rank| {
            let mut to = place;
            to[axis] = (place[axis] + by) % size[axis];
            at(to)
        };
        let peers = [moved(stride), moved(size[axis] - stride)];
        let peers = if peers[0] == peers[1] { &peers[..1] } else { &peers };
        with(peers.iter().copied().filter(|peer| *peer != rank), bytes)
    };
    let all = levels.iter().chain(levels.iter().rev());
    all.flat_map(|level| level.iter().map(|side| exchange(*side)).chain([compute(10_000)])).collect()
}

/// Wavefronts over a grid of ranks, plane by plane: from the first corner to the last, and back.
#[inline]
fn lu(rank: Rank, ranks: Rank) -> Vec<Step> {
    const PLANES: u32 = 20;
    let across = 1 << ranks.ilog2().div_ceil(2);
    let (row, column, columns) = (rank % across, rank / across, ranks / across);
    let north = (row > 0).then(|| rank - 1);
    let south = (row + 1 < across).then(|| rank + 1);
    let west = (column > 0).then(|| rank - across);
    let east = (column + 1 < columns).then(|| rank + across);
    let mut steps = Vec::new();
    for (from, to) in [([north, west], [south, east]), ([south, east], [north, west])] {
        for _ in 0..PLANES {
            steps.push(Step { receives: from.into_iter().flatten().collect(), compute: 2000, ..Step::default() });
            steps.push(Step { sends: to.into_iter().flatten().map(|to| (to, 400)).collect(), ..Step::default() });
        }
    }
    steps.push(with([north, south, west, east].into_iter().flatten(), 5000));
    steps
}

/// Size of a box of ranks, and the rank's place in it.
#[inline]
fn cube(rank: Rank, ranks: Rank) -> ([Rank; 3], [Rank; 3]) {
    let bits = ranks.ilog2();
    let x = bits.div_ceil(3);
    let y = (bits - x).div_ceil(2);
    let size = [1 << x, 1 << y, 1 << (bits - x - y)];
    (size, [rank % size[0], rank / size[0] % size[1], rank / size[0] / size[1]])
}

/// Peers at these distances along the axes. Beyond an end there is no peer, or, with `round`, the box wraps
/// around.
#[inline]
fn around(rank: Rank, ranks: Rank, distances: &[i64], round: bool) -> Vec<(Rank, [i64; 3])> {
    let (size, place) = cube(rank, ranks);
    let moved = |axis: usize, by: i64| {
        let to = i64::from(place[axis]) + by;
        let within = if round { to.rem_euclid(i64::from(size[axis])) } else { to };
        (0..i64::from(size[axis])).contains(&within).then_some(within as Rank)
    };
    let mut peers: Vec<(Rank, [i64; 3])> = Vec::new();
    for x in distances {
        for y in distances {
            for z in distances {
                let (Some(a), Some(b), Some(c)) = (moved(0, *x), moved(1, *y), moved(2, *z)) else { continue };
                let peer = a + size[0] * (b + size[1] * c);
                if peer != rank && peers.iter().all(|(other, _)| *other != peer) {
                    peers.push((peer, [*x, *y, *z]));
                }
            }
        }
    }
    peers
}

/// Patches send their atoms to patches up to two away, and receive forces; direct neighbours exchange far
/// more often.
#[inline]
fn namd(rank: Rank, ranks: Rank) -> Vec<Step> {
    let peers = around(rank, ranks, &[0, 1, -1, 2, -2], true);
    let near = peers
        .iter()
        .filter(|(_, by)| by.iter().filter(|by| **by != 0).count() == 1 && by.iter().all(|by| by.abs() < 2));
    let all = || with(peers.iter().map(|(peer, _)| *peer), 1800);
    let near = || with(near.clone().map(|(peer, _)| *peer), 3000);
    vec![all(), compute(100_000), near(), compute(20_000), near()]
}

/// Levels of a multigrid coarsened along one axis at a time: all corners at distances that are powers of two.
#[inline]
fn smg(rank: Rank, ranks: Rank) -> Vec<Step> {
    let peers = around(rank, ranks, &[0, 1, -1, 2, -2, 4, -4], false);
    let at = |least: i64, most: i64| {
        let far = |by: &[i64; 3]| by.iter().map(|by| by.abs()).max().expect("three axes");
        peers.iter().filter(move |(_, by)| (least..=most).contains(&far(by))).map(|(peer, _)| *peer)
    };
    let mut steps = Vec::new();
    for _ in 0..2 {
        steps.extend([with(at(1, 1), 600), compute(20_000), with(at(2, 2), 200), compute(5_000), with(at(4, 4), 80)]);
    }
    steps
}
