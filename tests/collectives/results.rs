//! Results of collectives by their definitions, for every type of call, length and number of ranks. Misuse is an error.

use crate::numbers;
use crate::ranks;
use numbers::{folded, number, numbers};
use ranks::on;
use std::time::{Duration, Instant};
use transom::collective::{Commutative, MaxLoc, MinLoc, Ordered, Ragged, Rules, ValueLoc};
use transom::messages::{Error, Tag};
use transom::{Op, World};

/// Lengths around those at which the algorithm, or the path of messages, changes.
fn lengths(world: &World) -> &'static [usize] {
    match world.size() {
        ..=4 => &[0, 1, 2, 5, 100, 1025, 2048, 2049, 20_000, 131_072],
        5..=8 => &[0, 1, 3, 100, 2049, 20_000],
        _ => &[0, 1, 3, 100, 2049],
    }
}

#[test]
fn collectives_of_any_length_give_defined_results() {
    on(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 16], "collectives_of_any_length_give_defined_results", |world| {
        for (round, &len) in lengths(&world).iter().enumerate() {
            with_lengths(&world, len, round);
        }
    });
}

/// Algorithms that the table does not choose for as few ranks.
fn with_algorithms(asked: &str, name: &str) {
    ranks::on_with(&[("TRANSOM_COLLECTIVES", asked)], &[1, 2, 3, 4, 5, 6, 7, 8, 9], name, |world| {
        // 1 MiB on few ranks alone: on many, a block for each pair is too much.
        let longest = if world.size() <= 3 { 131_072 } else { 30_000 };
        for (round, len) in [0, 1, 5, 1000, longest].into_iter().enumerate() {
            with_lengths(&world, len, round);
        }
    });
}

#[test]
fn latency_algorithms_give_defined_results() {
    let asked = "broadcast=binomial,reduce=binomial,all_reduce=rabenseifner,all_gather=bruck,all_to_all=bruck,\
                 gather=binomial,scatter=binomial";
    with_algorithms(asked, "latency_algorithms_give_defined_results");
}

#[test]
fn bandwidth_algorithms_give_defined_results() {
    let asked = "broadcast=ring,reduce=pairwise,all_reduce=ring,all_gather=ring,all_to_all=pairwise,\
                 scan=recursive_doubling";
    with_algorithms(asked, "bandwidth_algorithms_give_defined_results");
}

#[test]
fn unknown_algorithm_is_refused() {
    let name = "unknown_algorithm_is_refused";
    ranks::on_with(&[("TRANSOM_COLLECTIVES", "all_reduce=wishing")], &[2], name, |world| {
        let error = world.all_reduce_one(1, Op::Sum).unwrap_err().to_string();
        assert!(
            error.contains("TRANSOM_COLLECTIVES")
                && error.contains("column 12: found `wishing`, expected an algorithm"),
            "{error}"
        );
    });
}

#[test]
fn rules_are_read_from_a_file() {
    let table = concat!(env!("CARGO_MANIFEST_DIR"), "/collective/src/table.rules");
    ranks::on_with(&[("TRANSOM_COLLECTIVES", table)], &[2, 3], "rules_are_read_from_a_file", |world| {
        for len in [1, 3000] {
            with_lengths(&world, len, len);
        }
    });
}

#[test]
fn malformed_rules_file_is_reported_with_position() {
    let name = "malformed_rules_file_is_reported_with_position";
    for (value, told) in ranks::each(&[
        (concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), "line 1, column 1: found `[`, expected"),
        ("all_reduce", "neither a rule nor a readable file"),
    ]) {
        ranks::on_with(&[("TRANSOM_COLLECTIVES", value), ("TEST_TOLD", told)], &[1, 2], name, |world| {
            let told = std::env::var("TEST_TOLD").unwrap();
            let error = world.all_reduce_one(1, Op::Sum).unwrap_err().to_string();
            assert!(error.contains(&told), "{error}");
            let error = world.iall_reduce(vec![1], Op::Sum).wait().unwrap_err().to_string();
            assert!(error.contains(&told), "{error}");
        });
    }
}

/// Rules of a team's own, one of which names another algorithm for each length.
#[test]
fn team_rules_apply_to_that_team_alone() {
    ranks::on(&[1, 2, 3, 5], "team_rules_apply_to_that_team_alone", |world| {
        let team = world.split(Some(0), 0).unwrap().unwrap();
        let rules =
            "all_reduce bytes<=8 = ring, all_reduce bytes<=16 = board, all_reduce = pairwise, broadcast = bruck";
        team.collectives_by(&rules.parse().unwrap()).unwrap();
        for len in [1, 2, 3, 1000] {
            with_lengths(&team, len, len);
        }
        with_lengths(&world, 1, 1);
        for used in [team, world] {
            let error = used.collectives_by(&Rules::default()).unwrap_err();
            assert!(error.to_string().contains("once, before the first"), "{error}");
        }
    });
}

fn with_lengths(world: &World, len: usize, round: usize) {
    let (me, n) = (world.rank(), world.size());
    let (root, mine) = (round % n, numbers(me, len, round));
    let sum = |ranks: std::ops::Range<usize>, index| folded(ranks, index, round, |a, b| a + b);
    let is = |got: &[u64], what: &str, want: &dyn Fn(usize) -> u64| {
        for (index, got) in got.iter().enumerate() {
            assert_eq!(*got, want(index), "{what} of {len} elements, element {index}");
        }
    };
    let begun = Instant::now();

    let mut data = if me == root { mine.clone() } else { vec![9999; len] };
    world.broadcast(root, &mut data).unwrap();
    is(&data, "broadcast", &|index| number(root, index, round));

    let mut data = mine.clone();
    world.reduce(root, &mut data, Op::Sum).unwrap();
    is(&data, "reduce", &|index| if me == root { sum(0..n, index) } else { number(me, index, round) });

    let mut data = mine.clone();
    world.all_reduce(&mut data, Op::Max).unwrap();
    is(&data, "all_reduce", &|index| folded(0..n, index, round, u64::max));
    let mut floats: Vec<f64> = mine.iter().map(|number| *number as f64).collect();
    world.all_reduce(&mut floats, Op::Sum).unwrap();
    let whole: Vec<u64> = floats.iter().map(|float| *float as u64).collect();
    is(&whole, "all_reduce of floats", &|index| sum(0..n, index));

    let mut data = mine.clone();
    world.scan(&mut data, Op::Sum).unwrap();
    is(&data, "scan", &|index| sum(0..me + 1, index));
    let mut data = mine.clone();
    world.exscan(&mut data, Op::Sum).unwrap();
    is(&data, "exscan", &|index| if me == 0 { number(0, index, round) } else { sum(0..me, index) });

    let blocks = numbers(me, len * n, round);
    let mut data = vec![9999; len];
    world.reduce_scatter(&blocks, &mut data, Op::Sum).unwrap();
    is(&data, "reduce_scatter", &|index| sum(0..n, me * len + index));

    // One block of each rank.
    let of_each = |index: usize| number(index / len, index % len, round);
    if let Some(all) = world.gather(root, &mine).unwrap() {
        assert_eq!((me, all.len()), (root, n * len));
        is(&all, "gather", &of_each);
    }
    let all = world.all_gather(&mine).unwrap();
    assert_eq!(all.len(), n * len);
    is(&all, "all_gather", &of_each);

    let mut data = vec![9999; len];
    world.scatter(root, if me == root { &blocks } else { &[] }, &mut data).unwrap();
    is(&data, "scatter", &|index| number(root, me * len + index, round));

    let mut data = vec![9999; len * n];
    world.all_to_all(&blocks, &mut data).unwrap();
    is(&data, "all_to_all", &|index| number(index / len, me * len + index % len, round));

    let begun = begun.elapsed();
    assert!(begun < ranks::within(Duration::from_secs(30)), "{len} elements took {begun:?}");
}

#[test]
fn blocks_of_different_lengths_are_exchanged() {
    on(&[1, 2, 3, 5, 8], "blocks_of_different_lengths_are_exchanged", |world| {
        let (me, n) = (world.rank(), world.size());
        for round in 0..6 {
            let count = |rank: usize| (rank * 5 + round * 3) % 7 * [1, 1000][round % 2];
            let (mine, root) = (numbers(me, count(me), round), round % n);
            let want: Vec<u64> = (0..n).flat_map(|rank| numbers(rank, count(rank), round)).collect();

            let all = world.all_gather_v(&mine).unwrap();
            assert_eq!(all.elements(), want);
            assert_eq!(all.counts().collect::<Vec<_>>(), (0..n).map(count).collect::<Vec<_>>());
            let gathered = world.gather_v(root, &mine).unwrap();
            assert_eq!(gathered.map(Ragged::into_elements), (me == root).then_some(want.clone()));

            let whole = Ragged::from((0..n).map(|rank| numbers(rank, count(rank), round)).collect::<Vec<_>>());
            let part = world.scatter_v(root, (me == root).then_some(&whole)).unwrap();
            assert_eq!(part, mine);

            let counts: Vec<usize> = (0..n).map(count).collect();
            let mut folded = vec![0; count(me)];
            world.reduce_scatter_v(&vec![2; want.len()], &counts, &mut folded, Op::Prod).unwrap();
            assert!(folded.iter().all(|product| *product == 1 << n));

            // Each block is as long as its two ranks differ.
            let between = |from: usize, to: usize| vec![(from * 100 + to) as u32; from.abs_diff(to) * (round + 1)];
            let to_each = Ragged::from((0..n).map(|to| between(me, to)).collect::<Vec<_>>());
            let got = world.all_to_all_v(&to_each).unwrap();
            assert_eq!(got, Ragged::from((0..n).map(|from| between(from, me)).collect::<Vec<_>>()));

            // Into buffers, with known lengths.
            let mut all = vec![7; if me == root { want.len() } else { 1 }];
            world.gather_v_into(root, &mine, if me == root { &counts } else { &[] }, &mut all).unwrap();
            assert_eq!(all, if me == root { want } else { vec![7] });
            let mut part = vec![0; mine.len()];
            let (whole, lengths) = if me == root { (whole.elements(), &counts[..]) } else { (&[][..], &[][..]) };
            world.scatter_v_into(root, whole, lengths, &mut part).unwrap();
            assert_eq!(part, mine);
            let lengths: Vec<usize> = (0..n).map(|rank| rank.abs_diff(me) * (round + 1)).collect();
            let mut again = vec![0; lengths.iter().sum()];
            world.all_to_all_v_into(to_each.elements(), &lengths, &mut again, &lengths).unwrap();
            assert_eq!(again, got.into_elements());
        }
    });
}

/// Digits in base 5, as a number and a power. Concatenation does not commute.
fn side_by_side(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [a[0].wrapping_mul(b[1]).wrapping_add(b[0]), a[1].wrapping_mul(b[1])]
}

#[test]
fn user_operators_fold_in_rank_order() {
    let body = |world: World| {
        let (me, n) = (world.rank(), world.size());
        let digit = |rank: usize, index: usize| ((rank * 3 + index) % 5) as u64;
        let whole =
            |ranks: std::ops::Range<usize>, index: usize| ranks.fold(0, |sum: u64, rank| sum * 5 + digit(rank, index));
        for len in [1, 3, 400, 5000] {
            let mine: Vec<[u64; 2]> = (0..len).map(|index| [digit(me, index), 5]).collect();
            let mut all = mine.clone();
            world.all_reduce(&mut all, Ordered(side_by_side)).unwrap();
            assert!((0..len).all(|index| all[index][0] == whole(0..n, index)), "all_reduce of {len}");
            for root in 0..n {
                let mut data = mine.clone();
                world.reduce(root, &mut data, Ordered(side_by_side)).unwrap();
                let want = |index| if me == root { whole(0..n, index) } else { digit(me, index) };
                assert!((0..len).all(|index| data[index][0] == want(index)), "reduce of {len} to {root}");
            }
            let mut data = mine.clone();
            world.scan(&mut data, Ordered(side_by_side)).unwrap();
            assert!((0..len).all(|index| data[index][0] == whole(0..me + 1, index)), "scan of {len}");
        }
        let longest =
            world.all_reduce_one(me as i32 - 3, Commutative(|a: i32, b: i32| if a.abs() >= b.abs() { a } else { b }));
        assert_eq!(longest.unwrap().abs(), (n as i32 - 4).abs().max(3));
        // The second greatest value is at two places.
        let value = [2.5, -1.0, 7.0, 7.0][me % 4];
        let most = world.all_reduce_one(ValueLoc::new(value, me as u64), MaxLoc).unwrap();
        let least = world.all_reduce_one(ValueLoc::new(value, me as u64), MinLoc).unwrap();
        assert_eq!((most.value(), most.place()), if n > 2 { (7.0, 2) } else { (2.5, 0) });
        assert_eq!((least.value(), least.place()), if n > 1 { (-1.0, 1) } else { (2.5, 0) });
        let number = [f32::NAN, 4.0][me % 2];
        let most = world.all_reduce_one(ValueLoc::new(number, me as u64), MaxLoc).unwrap();
        assert_eq!(most.place(), u64::from(n > 1), "a number rather than a NaN");
    };
    for variables in ranks::each(&[&[][..], ranks::BY_MESSAGES]) {
        ranks::on_with(variables, &ranks::SIZES, "user_operators_fold_in_rank_order", body);
    }
}

/// Floats are reduced in the same way at all ranks and in each run.
#[test]
fn float_sums_are_bitwise_reproducible() {
    let body = |world: World| {
        for len in [1, 7, 3000, 40_000] {
            let sum = || {
                let mut data: Vec<f32> = (0..len).map(|index| 1.0 / (1 + world.rank() * 7 + index) as f32).collect();
                world.all_reduce(&mut data, Op::Sum).unwrap();
                data.iter().map(|float| float.to_bits()).collect::<Vec<_>>()
            };
            let (first, second) = (sum(), sum());
            assert_eq!(first, second);
            let all = world.all_gather(&first).unwrap();
            assert!(all.chunks(len).all(|theirs| theirs == first));
        }
    };
    for variables in ranks::each(&[&[][..], ranks::BY_MESSAGES]) {
        ranks::on_with(variables, &[3, 5, 8], "float_sums_are_bitwise_reproducible", body);
    }
}

#[test]
fn concurrent_team_collectives_are_independent() {
    on(&[2, 4, 6], "concurrent_team_collectives_are_independent", |world| {
        let (me, n) = (world.rank(), world.size());
        let halves = world.split(Some(me as u64 % 2), 0).unwrap().unwrap();
        let backwards = world.split(Some(0), (n - me) as u64).unwrap().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for round in 0..100 {
                    let sum = halves.all_reduce_one(me + round, Op::Sum).unwrap();
                    assert_eq!(sum, (me % 2..n).step_by(2).map(|rank| rank + round).sum::<usize>());
                }
            });
            for round in 0..100 {
                assert_eq!(backwards.all_gather(&[me + round]).unwrap(), (round..n + round).rev().collect::<Vec<_>>());
            }
            other.join().unwrap();
        });
    });
}

#[test]
fn two_threads_in_one_team_are_reported() {
    on(&[2], "two_threads_in_one_team_are_reported", |world| {
        if world.rank() == 1 {
            world.recv(0, Tag::<u8>::new(1)).unwrap();
            let error = world.broadcast_one(0, 1).unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            world.send(0, Tag::new(2), &[0_u8]).unwrap();
            return;
        }
        let waits = ranks::Waiter::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                waits.asks();
                world.all_reduce_one(1, Op::Sum)
            });
            waits.until_it_waits();
            let error = world.broadcast_one(0, 1).unwrap_err();
            assert!(error.to_string().contains("two threads of rank 0"), "{error}");
            world.send(1, Tag::new(1), &[0_u8]).unwrap();
            let error = waiting.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            // This rank stays until the other has its error: a rank that has left is another one.
            world.recv(1, Tag::<u8>::new(2)).unwrap();
        });
    });
}
