//! Started collectives: each in every form, many at once, repeated.

use crate::numbers;
use crate::ranks;
use numbers::{folded, number, numbers};
use ranks::on;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transom::collective::{Commutative, Grid, Ordered, Ragged};
use transom::messages::{Error, Persistent, Request, Requests, Source, Tag};
use transom::{Op, World};

/// The values that a rank passes to a call, and the expected result.
struct Expected {
    given: Vec<u64>,
    got: Vec<u64>,
}

/// Each call, of `len` elements of a rank or of a block, by its name. Elements that are not compared are `STAYS`.
struct Cases {
    me: usize,
    ranks: usize,
    root: usize,
    len: usize,
    round: usize,
}

/// Marks elements that are not compared: the result of a scan at rank 0, and a block without a sender.
const STAYS: u64 = u64::MAX;

impl Cases {
    /// Elements of a rank, of its block for another.
    fn block(&self, from: usize, to: usize, len: usize) -> Vec<u64> {
        (0..len).map(|index| number(from, index + 31 * to, self.round)).collect()
    }

    fn at_root(&self, elements: Vec<u64>) -> Vec<u64> {
        if self.me == self.root { elements } else { Vec::new() }
    }

    /// Lengths that differ by rank, some 0.
    fn counts(&self) -> Vec<usize> {
        (0..self.ranks).map(|rank| (rank * self.len + self.round) % 5 * self.len.min(9)).collect()
    }

    /// From a rank to a rank.
    fn count(&self, from: usize, to: usize) -> usize {
        (from * 3 + to * 5 + self.round) % 4 * self.len.min(9)
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.ranks
    }

    fn copy(&self) -> Expected {
        Expected { given: numbers(self.me, self.len, self.round), got: numbers(self.root, self.len, self.round) }
    }

    fn fold(&self, of: std::ops::Range<usize>, op: fn(u64, u64) -> u64) -> Expected {
        let got = match of.is_empty() {
            true => vec![STAYS; self.len],
            false => (0..self.len).map(|index| folded(of.clone(), index, self.round, op)).collect(),
        };
        Expected { given: numbers(self.me, self.len, self.round), got }
    }

    fn reduce_scatter(&self, counts: &[usize]) -> Expected {
        let start: usize = counts[..self.me].iter().sum();
        let got = (start..start + counts[self.me]).map(|index| folded(self.all(), index, self.round, |a, b| a + b));
        Expected { given: numbers(self.me, counts.iter().sum(), self.round), got: got.collect() }
    }

    fn gather(&self, counts: &[usize]) -> Expected {
        let all = self.all().flat_map(|rank| numbers(rank, counts[rank], self.round)).collect();
        Expected { given: numbers(self.me, counts[self.me], self.round), got: all }
    }

    fn scatter(&self, counts: &[usize]) -> Expected {
        let given = self.all().flat_map(|rank| self.block(self.root, rank, counts[rank])).collect();
        Expected { given: self.at_root(given), got: self.block(self.root, self.me, counts[self.me]) }
    }

    fn all_to_all(&self, count: impl Fn(usize, usize) -> usize) -> Expected {
        let given = self.all().flat_map(|to| self.block(self.me, to, count(self.me, to))).collect();
        let got = self.all().flat_map(|from| self.block(from, self.me, count(from, self.me))).collect();
        Expected { given, got }
    }

    /// On a row: a block for the rank before, and one for the rank after.
    fn neighbours(&self) -> Expected {
        let block = |from: usize, to: usize| self.block(from, to, self.len);
        let before = self.me.checked_sub(1).map_or(vec![STAYS; self.len], |before| block(before, 1));
        let after = if self.me + 1 < self.ranks { block(self.me + 1, 0) } else { vec![STAYS; self.len] };
        Expected { given: [block(self.me, 0), block(self.me, 1)].concat(), got: [before, after].concat() }
    }
}

fn is(got: &[u64], expected: &[u64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = (0..got.len()).find(|&index| expected[index] != STAYS && got[index] != expected[index]);
    assert!(differs.is_none(), "{what}: index {differs:?} differs, found {got:?}, expected {expected:?}");
}

/// Each of the calls in its three forms; all are started before the first is waited for.
fn started(world: &World, len: usize, round: usize) {
    let (me, n) = (world.rank(), world.size());
    let root = round % n;
    let cases = Cases { me, ranks: n, root, len, round };
    let grid = Grid::new([n], [false]).unwrap();
    let (even, counts) = (vec![len; n], cases.counts());
    let (to, from): (Vec<_>, Vec<_>) = (0..n).map(|rank| (cases.count(me, rank), cases.count(rank, me))).unzip();
    let ragged = |elements: Vec<u64>, counts: &[usize]| Ragged::new(elements, counts);
    let mut reduce = cases.fold(cases.all(), |a, b| a + b);
    if me != root {
        reduce.got = reduce.given.clone();
    }
    let gather = |counts: &[usize]| {
        let gather = cases.gather(counts);
        Expected { got: cases.at_root(gather.got), ..gather }
    };
    let at_root = |counts: &[usize]| if me == root { counts.to_vec() } else { Vec::new() };
    let expected = [
        ("broadcast", cases.copy()),
        ("reduce", reduce),
        ("all_reduce", cases.fold(cases.all(), u64::max)),
        ("scan", cases.fold(0..me + 1, |a, b| a + b)),
        ("exscan", cases.fold(0..me, |a, b| a + b)),
        ("reduce_scatter", cases.reduce_scatter(&even)),
        ("reduce_scatter_v", cases.reduce_scatter(&counts)),
        ("gather", gather(&even)),
        ("gather_v", gather(&counts)),
        ("scatter", cases.scatter(&even)),
        ("scatter_v", cases.scatter(&counts)),
        ("all_gather", cases.gather(&even)),
        ("all_gather_v", cases.gather(&counts)),
        ("all_to_all", cases.all_to_all(|_, _| len)),
        ("all_to_all_v", cases.all_to_all(|from, to| cases.count(from, to))),
        ("neighbours", cases.neighbours()),
    ];
    let given = |at: usize| expected[at].1.given.clone();

    let root_data = (me == root).then(|| ragged(given(10), &counts));
    let owned: Vec<Request<'static, Vec<u64>>> = vec![
        world.ibroadcast(root, given(0)),
        world.ireduce(root, given(1), Op::Sum),
        world.iall_reduce(given(2), Op::Max),
        world.iscan(given(3), Op::Sum),
        world.iexscan(given(4), Op::Sum),
        world.ireduce_scatter(given(5), Op::Sum),
        world.ireduce_scatter_v(given(6), &counts, Op::Sum),
        world.igather(root, given(7)),
        world.igather_v(root, given(8), &at_root(&counts)),
        world.iscatter(root, given(9), len),
        world.iscatter_v(root, root_data, counts[me]),
        world.iall_gather(given(11)),
        world.iall_gather_v(given(12), &counts),
        world.iall_to_all(given(13)),
        world.iall_to_all_v(ragged(given(14), &to), &from),
        world.ineighbours(&grid, given(15)),
    ];
    assert_eq!(owned.len(), expected.len());
    // The last request first.
    for (request, (name, expected)) in owned.into_iter().zip(&expected).rev() {
        is(&request.wait().unwrap(), &expected.got, &format!("i{name} of {len}, rank {me} of {n}"));
    }

    let mut rooms: Vec<Vec<u64>> = expected
        .iter()
        .enumerate()
        .map(|(at, (_, expected))| if at < 5 { expected.given.clone() } else { vec![STAYS; expected.got.len()] })
        .collect();
    let [r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13, r14, r15] = &mut rooms[..] else { unreachable!() };
    let data = |at: usize| &expected[at].1.given[..];
    world
        .scope(|scope| {
            let requests = [
                scope.ibroadcast(root, r0),
                scope.ireduce(root, r1, Op::Sum),
                scope.iall_reduce(r2, Op::Max),
                scope.iscan(r3, Op::Sum),
                scope.iexscan(r4, Op::Sum),
                scope.ireduce_scatter(data(5), r5, Op::Sum),
                scope.ireduce_scatter_v(data(6), &counts, r6, Op::Sum),
                scope.igather(root, data(7), r7),
                scope.igather_v(root, data(8), &at_root(&counts), r8),
                scope.iscatter(root, data(9), r9),
                scope.iscatter_v(root, data(10), &at_root(&counts), r10),
                scope.iall_gather(data(11), r11),
                scope.iall_gather_v(data(12), &counts, r12),
                scope.iall_to_all(data(13), r13),
                scope.iall_to_all_v(data(14), &to, r14, &from),
                scope.ineighbours(&grid, data(15), r15),
            ];
            Request::wait_all(requests).map(drop)?;
            Ok::<(), Error>(())
        })
        .unwrap();
    for (room, (name, expected)) in rooms.iter().zip(&expected) {
        is(room, &expected.got, &format!("i{name} of {len} in a scope, rank {me} of {n}"));
    }
}

/// Persistent calls; their elements are those of the round in which they are started.
fn ready(world: &World, len: usize) {
    let (me, n) = (world.rank(), world.size());
    let root = n - 1;
    let grid = Grid::new([n], [false]).unwrap();
    let blocks = if me == root { vec![0; n * len] } else { Vec::new() };
    let mut calls: Vec<(&str, Persistent<u64>)> = vec![
        ("broadcast", world.broadcast_init(root, vec![0; len]).unwrap()),
        ("reduce", world.reduce_init(root, vec![0; len], Op::Sum).unwrap()),
        ("all_reduce", world.all_reduce_init(vec![0; len], Op::Max).unwrap()),
        ("scan", world.scan_init(vec![0; len], Op::Sum).unwrap()),
        ("exscan", world.exscan_init(vec![0; len], Op::Max).unwrap()),
        ("reduce_scatter", world.reduce_scatter_init(vec![0; n * len], Op::Sum).unwrap()),
        ("gather", world.gather_init(root, vec![0; len]).unwrap()),
        ("scatter", world.scatter_init(root, blocks, len).unwrap()),
        ("all_gather", world.all_gather_init(vec![0; len]).unwrap()),
        ("all_to_all", world.all_to_all_init(vec![0; n * len]).unwrap()),
        ("neighbours", world.neighbours_init(&grid, vec![0; 2 * len]).unwrap()),
    ];
    let mut step = world.barrier_init().unwrap();
    for round in 0..4 {
        let cases = Cases { me, ranks: n, root, len, round };
        let even = vec![len; n];
        let gather = cases.gather(&even);
        let mut reduce = cases.fold(cases.all(), |a, b| a + b);
        if me != root {
            reduce.got = reduce.given.clone();
        }
        let expected = [
            cases.copy(),
            reduce,
            cases.fold(cases.all(), u64::max),
            cases.fold(0..me + 1, |a, b| a + b),
            cases.fold(0..me, u64::max),
            cases.reduce_scatter(&even),
            Expected { got: cases.at_root(gather.got), ..gather },
            cases.scatter(&even),
            cases.gather(&even),
            cases.all_to_all(|_, _| len),
            cases.neighbours(),
        ];
        for ((_, call), expected) in calls.iter_mut().zip(&expected) {
            call.buffer().unwrap().copy_from_slice(&expected.given);
        }
        let mut active: Vec<_> = calls.iter_mut().map(|(_, call)| call.start().unwrap()).collect();
        let there = step.start().unwrap();
        while round == 1 && !active.iter_mut().all(|call| call.test()) {}
        if round == 2 {
            // The next use of the buffers waits for the calls.
            drop(active);
        } else {
            active.into_iter().for_each(|call| call.wait().map(drop).unwrap());
        }
        there.wait().unwrap();
        for ((name, call), expected) in calls.iter_mut().zip(&expected) {
            is(
                call.result().unwrap(),
                &expected.got,
                &format!("{name}_init of {len}, round {round}, rank {me} of {n}"),
            );
            let (passed, two) = (
                call.buffer().unwrap().to_vec(),
                !["broadcast", "reduce", "all_reduce", "scan", "exscan"].contains(name),
            );
            assert!(!two || passed == expected.given, "{name}_init changed its input buffer, rank {me} of {n}");
        }
    }
}

#[test]
fn started_collectives_give_defined_results() {
    on(&[1, 2, 3, 4, 5, 8, 9], "started_collectives_give_defined_results", |world| {
        let lengths: &[usize] = if world.size() < 5 { &[0, 1, 3, 2049, 20_000] } else { &[0, 1, 3, 2049] };
        for (round, &len) in lengths.iter().enumerate() {
            started(&world, len, round);
            ready(&world, len);
        }
    });
}

/// Each mistake is an error of its request, which returns its buffer; the other ranks of the call get an error too.
#[test]
fn invalid_arguments_return_the_buffer() {
    on(&[1, 2, 3], "invalid_arguments_return_the_buffer", |world| {
        let n = world.size();
        let refused = |request: Request<'static, Vec<i32>>, given: &[i32], why: &str| {
            let failed = request.wait().unwrap_err();
            assert!(failed.error.to_string().contains(why), "{}", failed.error);
            assert_eq!(failed.buffer.as_deref(), Some(given), "{why}");
        };
        refused(world.ibroadcast(n, vec![1]), &[1], "there is no rank");
        refused(world.igather(n, vec![2]), &[2], "there is no rank");
        refused(world.iscan(vec![3], Op::Replace), &[3], "Replace does not reduce");
        let odd = vec![4; n + 1];
        if n > 1 {
            refused(world.iall_to_all(odd.clone()), &odd, "all_to_all: the buffer of all blocks has");
            refused(world.ireduce_scatter(odd.clone(), Op::Sum), &odd, "reduce_scatter: the buffer of all blocks has");
        }
        refused(world.iall_gather_v(vec![5], &vec![2; n]), &[5], "of this rank itself, is 2, but `mine` has 1");
        refused(
            world.iall_gather_v(vec![5], &vec![1; n + 1]),
            &[5],
            &format!("all_gather_v: `counts` has {} lengths", n + 1),
        );
        refused(world.ireduce_scatter_v(vec![6], &[], Op::Sum), &[6], "reduce_scatter_v: `counts` has 0 lengths");
        let blocks = Ragged::new(vec![7; n], &vec![1; n]);
        refused(
            world.iall_to_all_v(blocks.clone(), &vec![2; n]),
            &vec![7; n],
            "of this rank itself, is 2, but `given` has 1",
        );
        refused(world.iall_to_all_v(blocks, &[]), &vec![7; n], "all_to_all_v: `taken` has 0 lengths");
        let error = world.all_to_all_init(odd).map(drop);
        assert_eq!(error.is_err(), n > 1);
        assert!(matches!(world.scatter_init(n, vec![1], 1).map(drop), Err(Error::NoSuchRank { .. })));
        // All ranks refused the same number of calls: the team goes on.
        assert_eq!(world.all_reduce_one(1, Op::Sum).unwrap(), n);
    });
}

#[test]
fn interleaved_collectives_give_defined_results() {
    on(&[1, 2, 3, 4, 8], "interleaved_collectives_give_defined_results", |world| {
        let (me, n) = (world.rank(), world.size());
        for round in 0..10 {
            let len = [1, 50, 3000][round % 3];
            let root = round % n;
            let barrier = world.ibarrier();
            let sum = world.iall_reduce(numbers(me, len, round), Op::Sum);
            let copy = world.ibroadcast(root, numbers(if me == root { 77 } else { 0 }, len, round));
            let all = world.iall_gather(vec![me; len]);
            drop(world.iall_reduce(vec![1_u8; 3], Op::Max)); // the others get their results all the same
            std::mem::forget(world.iall_gather(vec![me as u8]));
            let blocks = world.iall_to_all((0..n).map(|to| (me * n + to) as u32).collect());
            let reduced = world.ireduce(root, vec![me as u64 + 1], Op::Prod);
            // Other collectives, and messages, go on in between.
            let mut most = [me];
            world.all_reduce(&mut most, Op::Max).unwrap();
            assert_eq!(most, [n - 1]);
            world.send((me + 1) % n, Tag::new(3), &[round]).unwrap();
            assert_eq!(world.recv(Source::Any, Tag::<usize>::new(3)).unwrap().0, [round]);
            let product = if me == root { (1..=n as u64).product() } else { me as u64 + 1 };
            assert_eq!(reduced.wait().unwrap(), [product]);
            assert_eq!(blocks.wait().unwrap(), (0..n).map(|from| (from * n + me) as u32).collect::<Vec<_>>());
            assert_eq!(copy.wait().unwrap(), numbers(77, len, round));
            assert_eq!(all.wait().unwrap(), (0..n).flat_map(|rank| vec![rank; len]).collect::<Vec<_>>());
            let sum = sum.wait().unwrap();
            assert!((0..len).all(|index| sum[index] == folded(0..n, index, round, |a, b| a + b)));
            barrier.wait().unwrap();
        }
        // The rank that asks last is not the one that is waited for.
        let requests: Requests<_> = (0..20).map(|k| world.iall_reduce(vec![k, 1], Op::Sum)).collect();
        if me == 0 {
            world.barrier().unwrap();
        }
        for (number, sums) in requests.wait_all().unwrap() {
            assert_eq!(sums, [number * n, n]);
        }
        if me > 0 {
            world.barrier().unwrap();
        }
    });
}

#[test]
fn scoped_collectives_fill_borrowed_buffers() {
    on(&[1, 2, 3, 4], "scoped_collectives_fill_borrowed_buffers", |world| {
        let (me, n) = (world.rank(), world.size());
        let (mut sums, mut copy, mut all) = (numbers(me, 5000, 0), [me; 3], vec![0; n]);
        let given: Vec<u64> = (0..n).map(|to| (me * 10 + to) as u64).collect();
        let mut got = vec![0; n];
        let mine = [me + 5];
        world
            .scope(|scope| {
                let sum = scope.iall_reduce(&mut sums, Op::Sum);
                drop(scope.ibroadcast(n - 1, &mut copy)); // the scope waits for it
                std::mem::forget(scope.iall_gather(&mine, &mut all));
                scope.iall_to_all(&given, &mut got).wait()?;
                let sum = sum.wait()?;
                assert_eq!(sum[4999], folded(0..n, 4999, 0, |a, b| a + b));
                Ok::<(), Error>(())
            })
            .unwrap();
        assert_eq!(copy, [n - 1; 3]);
        assert_eq!(all, (5..n + 5).collect::<Vec<_>>());
        assert_eq!(got, (0..n).map(|from| (from * 10 + me) as u64).collect::<Vec<_>>());
    });
}

#[test]
fn restarted_persistent_collectives_are_correct() {
    on(&ranks::SIZES, "restarted_persistent_collectives_are_correct", |world| {
        let (rank, size, len) = (world.rank(), world.size(), 1000);
        let root = size / 2;
        let mut sums = world.all_reduce_init(vec![0; len], Op::Sum).unwrap();
        let mut news = world.broadcast_init(root, vec![0; len]).unwrap();
        let mut firsts = world.reduce_init(root, vec![0; len], Ordered(|first, _| first)).unwrap();
        for round in 0..ranks::rounds(30) {
            sums.buffer().unwrap().copy_from_slice(&numbers(rank, len, round));
            news.buffer().unwrap().copy_from_slice(&numbers(rank, len, round + 1));
            firsts.buffer().unwrap().copy_from_slice(&numbers(rank, len, round + 2));
            let (mut sum, of_root, first) = (sums.start().unwrap(), news.start().unwrap(), firsts.start().unwrap());
            if round % 3 == 0 {
                // The next use of the buffer waits for the call.
                let _ = of_root;
            } else {
                of_root.wait().unwrap();
            }
            // Another call, between its start and its end.
            assert_eq!(world.all_reduce_one(1, Op::Sum).unwrap(), size);
            while round % 2 == 0 && !sum.test() {}
            first.wait().unwrap();
            sum.wait().unwrap();
            for index in [0, 1, len - 1] {
                assert_eq!(sums.buffer().unwrap()[index], folded(0..size, index, round, |a, b| a + b));
                assert_eq!(news.buffer().unwrap()[index], number(root, index, round + 1));
                let of = if rank == root { 0 } else { rank };
                assert_eq!(firsts.buffer().unwrap()[index], number(of, index, round + 2));
            }
        }
        let misused = world.broadcast_init(size, vec![0]).map(drop).unwrap_err();
        assert!(matches!(misused, Error::NoSuchRank { .. }), "{misused}");
    });
}

/// A call of another rank of the process panics, too, before that rank's engine has the memory that the call would
/// lend.
#[test]
fn library_call_within_an_operator_panics() {
    static OTHER: Mutex<Option<Arc<World>>> = Mutex::new(None);
    static DONE: AtomicBool = AtomicBool::new(false);
    const TAG: Tag<u8> = Tag::new(77);
    let came = transom::threads(2, |world| {
        let (me, world) = (world.rank(), Arc::new(world));
        if me == 1 {
            *OTHER.lock().unwrap() = Some(world.clone());
        }
        world.barrier().unwrap();
        let sum = move |a: u64, b: u64| {
            if me == 0 {
                let other = OTHER.lock().unwrap().clone().unwrap();
                for _ in 0..20 {
                    let data = vec![7; 1 << 20];
                    let sent = catch_unwind(AssertUnwindSafe(|| other.ssend(0, TAG, &data)));
                    sent.expect_err("a library call within an operator should panic");
                }
            }
            a + b
        };
        let started = world.iall_reduce(vec![1], Commutative(sum));
        if me == 1 {
            let begun = Instant::now();
            while !DONE.load(SeqCst) {
                assert!(begun.elapsed() < Duration::from_secs(20), "rank 0 did not finish within 20 s");
                world.progress().unwrap();
                // The rank's lock is free now and then.
                (0..2000).for_each(|_| std::hint::spin_loop());
            }
        }
        assert_eq!(started.wait().unwrap(), [2]);
        let came = me == 0 && world.probe_for(Source::Any, TAG, Duration::from_millis(300)).unwrap().is_some();
        DONE.store(true, SeqCst);
        *OTHER.lock().unwrap() = None;
        came
    });
    assert_eq!(came.unwrap(), [false, false]);
}

/// Both leave before the last has called.
#[test]
fn calls_of_departed_ranks_complete() {
    on(&[3, 4], "calls_of_departed_ranks_complete", |world| {
        let (me, n) = (world.rank(), world.size());
        world.barrier().unwrap();
        if me > 0 {
            drop(world.iall_reduce(vec![me as u64], Op::Sum));
            return;
        }
        std::thread::sleep(Duration::from_millis(300));
        let sum = world.iall_reduce(vec![0_u64], Op::Sum).wait().unwrap();
        assert_eq!(sum, [[3, 6][n - 3]]);
    });
}
