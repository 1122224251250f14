//! Tests of every call with 1 to 9 ranks that are threads, and with processes. The expected data is computed by one
//! thread, index by index.

mod failures;

use super::path_tuner::PathTuner;
use super::reduce;
use super::shared_lines::SharedLines;
use super::{Failure, ShmCollective};
use crate::reach::Reach;
use crate::{Invitation, Job, Loopback};
use std::process::Command;
use std::time::{Duration, Instant};
use transom_collective::Order;
use transom_locks::Rank;
use transom_windows::OobExchange;

/// Pseudo-random numbers, the same at all ranks.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// Runs `body` on threads, and returns their results.
fn on_threads<R: Send>(ranks: usize, body: impl Fn(Loopback) -> R + Sync) -> Vec<std::thread::Result<R>> {
    let teams = Loopback::threads(ranks).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = teams.into_iter().map(|team| scope.spawn(|| body(team))).collect();
        ranks.into_iter().map(|rank| rank.join()).collect()
    })
}

fn all_well<R>(results: Vec<std::thread::Result<R>>) -> Vec<R> {
    results.into_iter().map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}

/// Runs `body` on ranks that are processes: copies of this test program that run only the test `name`. Returns for each
/// rank whether it succeeded.
fn on_processes(ranks: usize, name: &str, body: impl Fn(Loopback)) -> Option<Vec<bool>> {
    if let Some(invitation) = Invitation::from_env().unwrap() {
        body(invitation.join().unwrap());
        return None;
    }
    let job = Job::create(ranks).unwrap();
    let start = |rank| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("collective::tests::{name}"), "--nocapture", "--include-ignored"]);
        command.envs(job.environment(rank)).spawn().unwrap()
    };
    let mut children: Vec<_> = (0..ranks).map(start).collect();
    let begun = Instant::now();
    let mut ended = vec![None; ranks];
    while ended.iter().any(Option::is_none) {
        for (rank, child) in
            children.iter_mut().enumerate().filter(|(rank, _)| ended[*rank].is_none()).collect::<Vec<_>>()
        {
            if begun.elapsed() > Duration::from_secs(180) {
                child.kill().unwrap();
            }
            if let Some(status) = child.try_wait().unwrap() {
                job.ended(rank, status.success());
                ended[rank] = Some(status.success());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Some(ended.into_iter().map(|well| well == Some(true)).collect())
}

fn open(team: &Loopback, strict: bool) -> ShmCollective {
    let mut board = ShmCollective::open(team).unwrap();
    (board.strict, board.tuner.always) = (strict, Some(true));
    // Folds by shares, and whole.
    board.whole = if strict { reduce::WHOLE } else { 64 };
    board
}

/// Returns the data that a rank gives in a call. It differs at each place.
fn given(call: u64, rank: Rank, len: usize) -> Vec<u8> {
    let begin = Random(call * 1000 + rank as u64).below(1 << 30);
    (begin..begin + len).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 13) as u8).collect()
}

/// Returns the elements of the lower ranks, then those of the higher ranks.
fn in_order<'e, T: ?Sized>(into: &'e T, with: &'e T, order: Order) -> (&'e T, &'e T) {
    match order {
        Order::After => (into, with),
        Order::Before => (with, into),
    }
}

/// Neither commutative nor associative, so that its result reveals the order.
fn mix(into: &mut [u8], with: &[u8], order: Order) {
    for (into, with) in into.iter_mut().zip(with) {
        let (left, right) = in_order(&*into, with, order);
        *into = left.wrapping_mul(3).wrapping_add(*right);
    }
}

/// Composition of the maps x -> a x + b modulo 2^64, the left one first.
fn compose(into: &mut [u8], with: &[u8], order: Order) {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    for (into, with) in into.chunks_exact_mut(16).zip(with.chunks_exact(16)) {
        let (left, right) = in_order(&*into, with, order);
        let [a, b, c, d] = [&left[..8], &left[8..], &right[..8], &right[8..]].map(word);
        into[..8].copy_from_slice(&a.wrapping_mul(c).to_le_bytes());
        into[8..].copy_from_slice(&b.wrapping_mul(c).wrapping_add(d).to_le_bytes());
    }
}

fn operation(element: usize) -> fn(&mut [u8], &[u8], Order) {
    if element == 16 { compose } else { mix }
}

/// Returns the fold of the first `ranks` ranks' elements.
fn folded(call: u64, ranks: usize, len: usize, element: usize) -> Vec<u8> {
    let mut into = given(call, 0, len);
    (1..ranks).for_each(|rank| operation(element)(&mut into, &given(call, rank, len), Order::After));
    into
}

const KINDS: usize = 11;

/// Makes one call of a kind with `count` elements, and checks its outcome.
fn check(
    board: &mut ShmCollective,
    kind: usize,
    call: u64,
    root: Rank,
    count: usize,
    element: usize,
) -> Result<(), Failure> {
    let (me, ranks, len) = (board.lines.me, board.ranks(), count * element);
    let mine = given(call, me, len);
    let fold = &mut |into: &mut [u8], with: &[u8], order| {
        assert!(into.len() == with.len() && into.len().is_multiple_of(element), "whole elements");
        operation(element)(into, with, order);
    };
    let blocks = || (0..ranks).flat_map(|rank| given(call, rank, len)).collect::<Vec<_>>();
    let what = || format!("kind {kind}, rank {me} of {ranks}, root {root}, {count} elements of {element}");
    // Aligned neither to a cache line nor to a word.
    let mut memory = vec![0xee; mine.len() * ranks + 3];
    let data = &mut memory[3..];
    match kind {
        0 => board.barrier(call)?,
        1 => {
            let data = &mut data[..len];
            data.copy_from_slice(&mine);
            board.broadcast(call, root, data)?;
            assert!(data == given(call, root, len), "{}", what());
        }
        2 => {
            board.all_gather(call, &mine, data)?;
            assert!(data == blocks(), "{}", what());
        }
        3 => {
            board.gather(call, root, &mine, if me == root { data } else { &mut [] })?;
            assert!(me != root || data == blocks(), "{}", what());
        }
        4 => {
            board.all_to_all(call, &given(call, me, len * ranks), data)?;
            let expected: Vec<u8> =
                (0..ranks).flat_map(|rank| given(call, rank, len * ranks)[me * len..][..len].to_vec()).collect();
            assert!(data == expected, "{}", what());
        }
        5 => {
            let all = given(call, root, len * ranks);
            board.scatter(call, root, if me == root { &all } else { &[] }, &mut data[..len])?;
            assert!(data[..len] == all[me * len..][..len], "{}", what());
        }
        10 => {
            let data = &mut data[..len];
            board.reduce_scatter(call, &given(call, me, len * ranks), data, element, fold)?;
            assert!(data == &folded(call, ranks, len * ranks, element)[me * len..][..len], "{}", what());
        }
        6..10 => {
            let data = &mut data[..len];
            data.copy_from_slice(&mine);
            let expected = match kind {
                6 => {
                    board.all_reduce(call, data, element, fold)?;
                    folded(call, ranks, len, element)
                }
                7 => {
                    board.reduce(call, root, data, element, fold)?;
                    if me == root { folded(call, ranks, len, element) } else { mine }
                }
                8 => {
                    board.scan(call, false, data, element, fold)?;
                    folded(call, me + 1, len, element)
                }
                _ => {
                    board.scan(call, true, data, element, fold)?;
                    folded(call, me.max(1), len, element)
                }
            };
            assert!(data == expected, "{}", what());
        }
        _ => unreachable!("no such kind"),
    }
    Ok(())
}

/// Returns pairs of a count and an element length: around the capacity of lines, cells and shares, and around the
/// limits of shared folds.
fn sizes(ranks: usize) -> Vec<(usize, usize)> {
    let cell = 32 << 10;
    let mut sizes: Vec<_> =
        [0, 1, 7, 8, 15, 16, 17, 55, 56, 57, 63, 64, 65, 111, 112, 113, 1023, 1025, 8191, 8192, 8193, 100 << 10]
            .into_iter()
            .chain([cell / ranks - 1, cell / ranks + 1, cell - 1, cell, cell + 1, 2 * cell + 65])
            .map(|bytes| (bytes, 1))
            .collect();
    sizes.extend([(1, 8), (2, 8), (3, 8), (7, 16), (512, 16), (513, 16), (6400, 16), (7, 3), (5000, 3), (4, 5000)]);
    sizes.extend([(1, 40_000), (3, 40_000)]); // elements that are longer than a cell
    sizes.push((300_001, 1));
    sizes
}

#[test]
fn every_call_matches_the_reference() {
    for ranks in 1..=9 {
        all_well(on_threads(ranks, |team| {
            let mut board = open(&team, ranks % 2 == 0);
            let mut reach = board.reach.take();
            assert!(reach.is_some(), "threads reach each other's memory");
            let mut call = 0;
            // Long data is tested with few ranks only.
            let most = match ranks {
                2 | 3 => usize::MAX,
                8 => 200_000,
                _ => 10_000,
            };
            for (count, element) in sizes(ranks).into_iter().filter(|(count, element)| count * element < most) {
                for kind in 0..KINDS {
                    // Tests both paths: through cells, and direct.
                    for _ in 0..if count * element < 32 << 10 { 1 } else { 2 } {
                        std::mem::swap(&mut board.reach, &mut reach);
                        call += 1;
                        let root = call as usize % ranks;
                        check(&mut board, kind, call, root, count, element).unwrap();
                    }
                }
            }
        }));
    }
}

/// Makes random calls, the same at all ranks, with random delays at each.
fn random_calls(board: &mut ShmCollective, seed: u64, calls: u64) {
    let mut random = Random(seed);
    let mut own = Random(seed + 1 + board.lines.me as u64);
    for call in 0..calls {
        let (kind, root) = (random.below(KINDS), random.below(board.ranks()));
        let element = [1, 3, 8, 16][random.below(4)];
        let most = if call % 20 == 19 { 400_000 } else { [8, 60, 600, 20_000][random.below(4)] };
        let count = random.below(most) / element;
        match own.below(40) {
            0 => std::thread::sleep(Duration::from_micros(own.below(300) as u64)),
            1..10 => std::thread::yield_now(),
            _ => {}
        }
        check(board, kind, seed << 32 | call, root, count, element).unwrap();
    }
}

#[test]
fn random_call_sequences_match_the_reference() {
    for (ranks, calls) in [(2, 1500), (3, 800), (4, 500), (16, 100)] {
        for strict in [false, true] {
            all_well(on_threads(ranks, |team| random_calls(&mut open(&team, strict), ranks as u64, calls)));
        }
    }
}

/// All ranks choose the same path, while they measure and afterwards, whatever each measures.
#[test]
fn ranks_agree_on_the_measured_path() {
    for ranks in [2, 3, 5] {
        all_well(on_threads(ranks, |team| {
            let mut board = open(&team, ranks == 3);
            board.tuner = PathTuner::new(false);
            for call in 0..36 * KINDS as u64 {
                let (kind, root) = (call as usize % KINDS, call as usize % ranks);
                check(&mut board, kind, call, root, 40_000 + 1000 * kind, 1).unwrap();
            }
        }));
    }
}

/// Ranks that need not wait run ahead, but only by a few rounds.
#[test]
fn broadcast_root_runs_ahead() {
    for (ranks, calls) in [(2, 20_000), (4, 60_000), (5, 5_000)] {
        all_well(on_threads(ranks, |team| {
            let mut board = open(&team, false);
            for call in 0..calls {
                let mine: u64 = if team.rank() == 0 { call } else { 0 };
                let mut data = [mine.to_le_bytes(); 8];
                board.broadcast(call % 3, 0, data.as_flattened_mut()).unwrap();
                assert_eq!(data, [u64::to_le_bytes(call); 8]);
                if call % 1000 == 0 {
                    let mut count = 1_u64.to_le_bytes();
                    let last = ranks - 1;
                    board.reduce(2, last, &mut count, 8, &mut |into, with, _| into[0] += with[0]).unwrap();
                    assert_eq!(count[0] as usize, if team.rank() == last { ranks } else { 1 });
                }
            }
        }));
    }
}

#[test]
fn processes_complete_shared_memory_collectives() {
    let body = |team: Loopback| {
        let mut board = open(&team, false);
        assert!(board.reach.is_some(), "processes of one user, that allow it, reach each other's memory");
        random_calls(&mut board, 5, 200);
        let half = team.split(Some(team.rank() as u64 % 2), 0).unwrap().unwrap();
        random_calls(&mut open(&half, false), 6, 50);
        board.barrier(1).unwrap();
    };
    let well = |ranks| on_processes(ranks, "processes_complete_shared_memory_collectives", body);
    let Some(ended) = well(2) else { return };
    assert_eq!(ended, [true; 2]);
    for ranks in [3, 8] {
        assert_eq!(well(ranks).unwrap(), vec![true; ranks]);
    }
}

/// Checks the formulas in the module's documentation.
#[test]
fn block_size_matches_documented_formula() {
    for (ranks, each) in
        [(1, 128), (2, 128), (3, 128), (8, 128), (9, 64), (16, 64), (17, 32), (64, 16), (65, 8), (1000, 8)]
    {
        let lines = 1152 + ranks * (704 + 16 * 128);
        let cells = ranks * (8 * 8192 + each * (32 << 10).max(64 * ranks));
        let bytes = super::block::Block::of(ranks).bytes();
        assert!(bytes <= lines + 4096 + cells && bytes >= cells, "{bytes} bytes of {ranks} ranks");
    }
}

/// No rank takes the elements of a scan's last rank, or of a reduction's root.
#[test]
fn elements_that_no_rank_takes_are_not_posted() {
    const LEN: usize = 4096;
    let results = on_threads(2, |team| {
        let mut board = open(&team, false);
        board.whole = reduce::WHOLE;
        let me = board.lines.me;
        let posted = |board: &ShmCollective| {
            let mut cell = vec![0; LEN];
            board.lines.shared.read(board.lines.block.cell(me, board.lines.round, LEN), &mut cell);
            cell == given(1, me, LEN)
        };
        board.scan(1, false, &mut given(1, me, LEN), 1, &mut mix).unwrap();
        let by_scan = posted(&board);
        board.reduce(2, 0, &mut given(1, me, LEN), 1, &mut mix).unwrap();
        [by_scan, posted(&board)]
    });
    assert_eq!(all_well(results), [[true, false], [false, true]]);
}

/// The owner's process counts, whatever its rank in a team.
#[test]
fn mapping_of_a_lost_owner_is_dropped() {
    let body = |job: Loopback| {
        // The team reverses the ranks: its rank 0 is rank 2 of the job.
        let team = job.split(Some(0), 10 - job.rank() as u64).unwrap().unwrap();
        let mut board = open(&team, false);
        let mut buffer = crate::buffer::Buffer::new(&job.0, 64 << 10).unwrap();
        buffer.fill(team.rank() as u8 + 1);
        let key = Reach::from(&*job.0).lead_to(buffer.as_ptr().addr(), buffer.len());
        let mut tag = key.key.to_le_bytes();
        board.broadcast(1, 0, &mut tag).unwrap();
        board.broadcast(2, 0, &mut buffer).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 1));
        if team.rank() != 0 {
            let (blocks, tag) = (&job.0.blocks, u64::from_le_bytes(tag));
            blocks.forget(job.0.control.process(0));
            assert!(blocks.get(tag).is_some(), "the mapping of a living owner was dropped");
            blocks.forget(job.0.control.process(2));
            assert!(blocks.get(tag).is_none());
        }
        board.barrier(3).unwrap();
    };
    let name = "mapping_of_a_lost_owner_is_dropped";
    let Some(ended) = on_processes(3, name, body) else { return };
    assert_eq!(ended, [true; 3]);
}
