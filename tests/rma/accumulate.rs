//! Accumulates on slices of every type, operation, offset and length, alone and racing, and refused calls.

use crate::arithmetic;
use crate::overlap;
use crate::ranks;

use arithmetic::Model;
use overlap::Overlapping;
use std::fmt::Debug;
use transom::shm_loopback::Loopback;
use transom::windows::OobExchange;
use transom::{Assert, Atomic, Error, Mode, Op, Window, World};

/// Elements that tests can compare. All NaNs are equal here, because the result's NaN is not defined.
trait Element: Atomic + Model + PartialEq + Debug {
    fn random(random: &mut fastrand::Rng) -> Self {
        let mut value = Self::zeroed();
        if random.u8(0..4) > 0 {
            random.fill(bytemuck::bytes_of_mut(&mut value));
        }
        value
    }

    #[allow(clippy::eq_op, reason = "only a NaN is not equal to itself")]
    fn same(self, other: Self) -> bool {
        self == other || (self != self && other != other)
    }
}

impl<T: Atomic + Model + PartialEq + Debug> Element for T {}

#[track_caller]
fn assert_same<T: Element>(found: &[T], expected: &[T], what: &dyn Debug) {
    let same = found.len() == expected.len() && found.iter().zip(expected).all(|(&found, &other)| found.same(other));
    assert!(same, "{} {what:?}: {found:?} should be {expected:?}", std::any::type_name::<T>());
}

macro_rules! on_all_types {
    ($check:ident($($argument:expr),*)) => {
        on_all_types!($check($($argument),*): u8 u16 u32 u64 i8 i16 i32 i64 f32 f64)
    };
    ($check:ident $arguments:tt: $($type:ty)*) => {{ $($check::<$type> $arguments;)* }};
}

#[test]
fn accumulate_of_any_span_matches_the_model() {
    fn check<T: Element>(world: &World, mode: Mode) {
        const LEN: usize = 21; // for most types, no whole number of words
        let mut random = fastrand::Rng::with_seed(world.rank() as u64);
        let mut window: Window<T> = world.allocate(LEN).unwrap();
        window.fence().unwrap();
        // Rank r is the only one that changes the next rank's part.
        let epoch = window.lock_with((world.rank() + 1) % world.size(), mode, Assert::empty()).unwrap();
        let mut oracle = vec![T::zeroed(); LEN];
        let places = (0..LEN).step_by(LEN / ranks::rounds(LEN).max(3));
        // Slow machines check each third length; the next operation checks the lengths that this one skips.
        let every = 30 / ranks::rounds(30);
        for (first, op) in T::OPERATIONS.iter().copied().enumerate() {
            let all = places.clone().flat_map(|at| [0, 1, 2, 3, 5, 8, 9, LEN - at].map(|len| (at, len)));
            for (at, len) in all.skip(first % every).step_by(every) {
                if at + len > LEN {
                    continue;
                }
                let random = &mut random;
                oracle.fill_with(|| T::random(random));
                let operands: Vec<T> = (0..len).map(|_| T::random(random)).collect();
                epoch.put(0, &oracle).unwrap();
                let before = oracle[at..at + len].to_vec();
                for (element, &operand) in oracle[at..].iter_mut().zip(&operands) {
                    *element = T::model(op, *element, operand);
                }
                let (what, mut after) = ((op, at, len), vec![T::zeroed(); LEN]);
                if len % 2 == 0 {
                    epoch.accumulate(at, op, &operands).unwrap();
                } else {
                    let mut results = vec![T::zeroed(); len];
                    epoch.get_accumulate(at, op, &operands, &mut results).unwrap();
                    assert_same(&results, &before, &what);
                }
                epoch.get(0, &mut after).unwrap();
                assert_same(&after, &oracle, &what);
            }
        }
    }
    let name = "accumulate_of_any_span_matches_the_model";
    ranks::on_all_sizes(name, |world| {
        on_all_types!(check(&world, Mode::Shared));
        on_all_types!(check(&world, Mode::Exclusive)); // not by atomics, from two words on
    });
}

/// An exclusive epoch works piece by piece, a shared one word by word. Both give the same result.
#[test]
fn long_accumulates_agree_in_every_epoch_kind() {
    fn check<T: Element>(world: &World) {
        let len = 9000 / size_of::<T>(); // more than two pieces
        let mut random = fastrand::Rng::with_seed(world.rank() as u64);
        let mut values = || -> Vec<T> { (0..len).map(|_| T::random(&mut random)).collect() };
        let (start, operands) = (values(), values());
        let mut window: Window<T> = world.allocate(len + 3).unwrap();
        let next = (world.rank() + 1) % world.size();
        window.fence().unwrap();
        for op in T::OPERATIONS.iter().copied() {
            let expected: Vec<T> = start.iter().zip(&operands).map(|(&a, &b)| T::model(op, a, b)).collect();
            // On slow machines, word-by-word operations are tested on fewer elements.
            for (mode, len) in [(Mode::Shared, ranks::rounds(len)), (Mode::Exclusive, len)] {
                let (start, operands, expected) = (&start[..len], &operands[..len], &expected[..len]);
                let epoch = window.lock_with(next, mode, Assert::empty()).unwrap();
                let (mut before, mut after) = (vec![T::zeroed(); len], vec![T::zeroed(); len]);
                epoch.put(3, start).unwrap();
                epoch.get_accumulate(3, op, operands, &mut before).unwrap();
                epoch.get(3, &mut after).unwrap();
                assert_same(&before, start, &(op, mode, "results"));
                assert_same(&after, expected, &(op, mode));
                epoch.put(3, start).unwrap();
                epoch.accumulate(3, op, operands).unwrap();
                epoch.get(3, &mut after).unwrap();
                assert_same(&after, expected, &(op, mode));
            }
        }
    }
    ranks::on(
        &[1, 2, 3],
        "long_accumulates_agree_in_every_epoch_kind",
        |world| on_all_types!(check(&world): u8 i16 u32 f32 u64 i64 f64),
    );
}

/// Operations whose result does not depend on the order of the operands. Floats are small whole numbers.
fn order_matters_not<T: Model>() -> Vec<Op> {
    use Op::*;
    let whole = [Sum, Min, Max, Prod, And, Or, Xor, LogicalAnd, LogicalOr, LogicalXor];
    whole.into_iter().filter(|&op| T::OPERATIONS.contains(&op) && (T::IS_INTEGER || op != Prod)).collect()
}

#[test]
fn concurrent_atomics_on_same_words_lose_nothing() {
    fn check<T: Element>(world: &World, small: fn(u8) -> T) {
        let rounds = ranks::rounds(100);
        let ops = order_matters_not::<T>();
        // Each element has an operation of its own, so that different operations meet in one word. Elements that swaps
        // count on follow, then a slice that all ranks sum up.
        let (counters, slice, len) = (ops.len(), 2 * ops.len(), 2 * ops.len() + 13);
        let mut window: Window<T> = world.allocate(len).unwrap();
        let epoch = window.fence().unwrap();
        let target = epoch.target(world.size() - 1).unwrap();
        let operands = |rank: usize| {
            let mut random = fastrand::Rng::with_seed(rank as u64);
            move || if T::IS_INTEGER { T::random(&mut random) } else { small(random.u8(1..20)) }
        };
        let mut operand = operands(world.rank());
        for _ in 0..rounds {
            for (at, &op) in ops.iter().enumerate() {
                target.fetch_and_op(at, op, operand()).unwrap();
                let mut seen = target.fetch_and_op(counters + at, Op::NoOp, T::zeroed()).unwrap();
                loop {
                    let next = T::model(Op::Sum, seen, small(1));
                    let found = target.compare_and_swap(counters + at, seen, next).unwrap();
                    if found == seen {
                        break;
                    }
                    seen = found;
                }
            }
            target.accumulate(slice, Op::Sum, &[small(1); 13]).unwrap();
        }
        window.fence().unwrap();
        let mut oracle = vec![T::zeroed(); len];
        for rank in 0..world.size() {
            let mut operand = operands(rank);
            for _ in 0..rounds {
                for (at, &op) in ops.iter().enumerate() {
                    oracle[at] = T::model(op, oracle[at], operand());
                }
                for element in &mut oracle[counters..] {
                    *element = T::model(Op::Sum, *element, small(1));
                }
            }
        }
        let mut found = vec![T::zeroed(); len];
        window.lock_shared(world.size() - 1).unwrap().get(0, &mut found).unwrap();
        assert_same(&found, &oracle, &ops);
    }
    ranks::on_all_sizes("concurrent_atomics_on_same_words_lose_nothing", |world| {
        check::<u8>(&world, |small| small);
        check::<i8>(&world, |small| small as i8);
        check::<u16>(&world, u16::from);
        check::<i16>(&world, i16::from);
        check::<u32>(&world, u32::from);
        check::<i32>(&world, i32::from);
        check::<u64>(&world, u64::from);
        check::<i64>(&world, i64::from);
        check::<f32>(&world, f32::from);
        check::<f64>(&world, f64::from);
    });
}

#[test]
fn concurrent_get_accumulate_draws_each_value_once() {
    fn check<T: Element>(world: &World, one: T, number: fn(T) -> usize) {
        const LEN: usize = 5;
        let (each, n, me) = (ranks::rounds(240) / world.size(), world.size(), world.rank());
        let total = each * n;
        let mut tickets: Window<T> = world.allocate(2 + LEN).unwrap();
        let mut drawn: Window<u8> = world.allocate(total * LEN).unwrap();
        let epoch = tickets.fence().unwrap();
        let drawn_epoch = drawn.fence().unwrap();
        for _ in 0..each {
            let mut mine = [one; LEN];
            epoch.target(n - 1).unwrap().get_accumulate(1, Op::Sum, &[one; LEN], &mut mine).unwrap();
            for (at, ticket) in mine.into_iter().enumerate() {
                drawn_epoch.target(0).unwrap().accumulate(at * total + number(ticket), Op::Sum, &[1]).unwrap();
            }
        }
        drawn.fence().unwrap();
        if me == 0 {
            assert_eq!(drawn.local().read(0, total * LEN).unwrap(), vec![1; total * LEN]);
        }
        tickets.fence().unwrap();
    }
    ranks::on_all_sizes("concurrent_get_accumulate_draws_each_value_once", |world| {
        check::<u8>(&world, 1, usize::from);
        check::<u16>(&world, 1, usize::from);
        check::<i32>(&world, 1, |ticket| ticket as usize);
        check::<u64>(&world, 1, |ticket| ticket as usize);
        check::<f32>(&world, 1.0, |ticket| ticket as usize);
        check::<f64>(&world, 1.0, |ticket| ticket as usize);
    });
}

#[test]
fn accumulates_of_one_rank_are_seen_in_order() {
    fn check<T: Element + PartialOrd>(world: &World, number: fn(u8) -> T) {
        let n = world.size();
        let mut window: Window<T> = world.allocate(n).unwrap();
        let epoch = window.fence().unwrap();
        let target = epoch.target(0).unwrap();
        let (mut seen, mut before) = (vec![T::zeroed(); n], vec![T::zeroed(); n]);
        for step in 1..=ranks::rounds(100) as u8 {
            target.accumulate(world.rank(), Op::Replace, &[number(step)]).unwrap();
            target.get_accumulate(0, Op::NoOp, &vec![T::zeroed(); n], &mut seen).unwrap();
            assert!(seen.iter().zip(&before).all(|(now, before)| now >= before), "{before:?}, then {seen:?}");
            assert_eq!(seen[world.rank()], number(step));
            std::mem::swap(&mut seen, &mut before);
        }
        window.fence().unwrap();
    }
    ranks::on_all_sizes("accumulates_of_one_rank_are_seen_in_order", |world| {
        check::<u8>(&world, |step| step);
        check::<i16>(&world, i16::from);
        check::<f32>(&world, f32::from);
        check::<u64>(&world, u64::from);
    });
}

#[test]
fn invalid_accumulate_is_refused_without_effect() {
    fn check<T: Element>(world: &World) {
        const LEN: usize = 5;
        let mut window: Window<T> = world.allocate(LEN).unwrap();
        let last = world.size() - 1;
        let mut random = fastrand::Rng::with_seed(7);
        let before: [T; LEN] = std::array::from_fn(|_| T::random(&mut random));
        window.local().write(0, &before).unwrap();
        let epoch = window.fence().unwrap();
        let target = epoch.target(last).unwrap();
        let one = T::random(&mut random);
        for (offset, len) in [(5, 1), (4, 2), (0, 6), (usize::MAX, 1), (usize::MAX / 2, 3), (1 << 61, 1), (6, 0)] {
            let mut some = vec![one; len];
            let mut results = vec![one; len];
            let mut refused = vec![
                target.accumulate(offset, Op::Replace, &some),
                target.accumulate(offset, Op::NoOp, &some),
                target.get_accumulate(offset, Op::Sum, &some, &mut results),
                target.put(offset, &some),
                target.get(offset, &mut some),
            ];
            if len == 1 {
                refused.push(target.fetch_and_op(offset, Op::Sum, one).map(drop));
                refused.push(target.compare_and_swap(offset, one, one).map(drop));
            }
            for (which, refused) in refused.into_iter().enumerate() {
                match refused {
                    Err(Error::OutOfBounds { rank, size: LEN, offset: at, len: n, .. }) if rank == last => {
                        assert_eq!((at, n), (offset, len), "call {which}");
                    }
                    other => panic!("call {which}, {len} elements from {offset}: {other:?}"),
                }
            }
        }
        for len in [0, 1, 3] {
            let lengths = target.get_accumulate(0, Op::Replace, &[one; 2], &mut vec![one; len]);
            assert!(matches!(lengths, Err(Error::BufferLength { needed: 2, .. })), "{lengths:?}");
        }
        for op in Op::ALL.into_iter().filter(|&op| !T::OPERATIONS.contains(&op)) {
            let refused = [
                target.accumulate(0, op, &[one; 2]),
                target.get_accumulate(0, op, &[one; 2], &mut [one; 2]),
                target.fetch_and_op(0, op, one).map(drop),
            ];
            for refused in refused {
                let text = refused.as_ref().map_err(ToString::to_string).unwrap_err().clone();
                assert!(matches!(refused, Err(Error::Operation { op: named, .. }) if named == op), "{refused:?}");
                assert!(
                    text.contains("is not defined for elements of type") && text.contains(std::any::type_name::<T>()),
                    "{text}"
                );
            }
        }
        window.fence().unwrap();
        assert_same(&window.local().read(0, LEN).unwrap(), &before, &"misuse");
    }
    ranks::on_all_sizes("invalid_accumulate_is_refused_without_effect", |world| on_all_types!(check(&world)));
}

#[test]
fn accumulates_of_mixed_widths_on_a_word_are_exact() {
    // The half of a word that carries of small sums do not reach.
    const HIGH: usize = if cfg!(target_endian = "little") { 4 } else { 0 };
    fn change(fabric: Overlapping) {
        let rounds = ranks::rounds(2000);
        let (mut words, mut halves) = (fabric.window::<u64>(), fabric.window::<u32>());
        let (mut shorts, mut bytes) = (fabric.window::<i16>(), fabric.window::<u8>());
        let last = fabric.size() - 1;
        let (word, half) = (words.lock_shared(last).unwrap(), halves.lock_shared(last).unwrap());
        let (short, byte) = (shorts.lock_shared(last).unwrap(), bytes.lock_shared(last).unwrap());
        for round in 0..rounds {
            let pattern = 0x0101_0101_0101_0101u64.wrapping_mul(u64::from(round as u8));
            word.fetch_and_op(0, Op::Sum, 1).unwrap();
            byte.accumulate(HIGH, Op::Sum, &[1, 3]).unwrap();
            short.fetch_and_op(HIGH / 2 + 1, Op::Sum, -1).unwrap();
            word.accumulate(1, Op::Xor, &[pattern]).unwrap();
            half.accumulate(3, Op::Xor, &[pattern as u32]).unwrap();
            short.accumulate(5, Op::Xor, &[pattern as i16; 2]).unwrap();
            byte.accumulate(9, Op::Xor, &[pattern as u8; 5]).unwrap();
        }
        drop((word, half, short, byte));
        words.fence().unwrap();
        let mut found = [0u8; 24];
        bytes.lock_shared(last).unwrap().get(0, &mut found).unwrap();
        let (total, mut oracle) = (rounds * fabric.size(), [0u8; 24]);
        oracle[4 - HIGH..][..4].copy_from_slice(&(total as u32).to_ne_bytes());
        oracle[HIGH..HIGH + 2].copy_from_slice(&[total as u8, 3u8.wrapping_mul(total as u8)]);
        oracle[HIGH + 2..HIGH + 4].copy_from_slice(&(total as i16).wrapping_neg().to_ne_bytes());
        for pattern in (0..total).map(|round| (round % rounds) as u8) {
            let widths = [8..16, 12..16, 10..14, 9..14];
            widths.into_iter().for_each(|width| oracle[width].iter_mut().for_each(|byte| *byte ^= pattern));
        }
        assert_eq!(found, oracle);
        words.fence().unwrap();
    }
    for &size in ranks::SIZES.iter() {
        let fabrics = Loopback::threads(size).unwrap();
        std::thread::scope(|scope| {
            let threads = fabrics.into_iter().map(|fabric| scope.spawn(|| change(Overlapping::new(fabric))));
            threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn accumulate_cost_matches_the_docs() {
    let fabric = Overlapping::new(Loopback::alone().unwrap());
    let (mut words, mut bytes) = (fabric.window::<i64>(), fabric.window::<u8>());
    let (epoch, narrow) = (words.lock_shared(0).unwrap(), bytes.lock_shared(0).unwrap());
    let (mut wide_results, mut results) = ([0; 3], [0; 9]);
    // This thread then stays admitted; `tests/rma/long_accumulates.rs` counts the operations of that.
    for _ in 0..17 {
        epoch.fetch_and_op(0, Op::NoOp, 0).unwrap();
        narrow.fetch_and_op(0, Op::NoOp, 0).unwrap();
    }
    // Puts, gets, compare-and-swaps, fetch-and-adds.
    assert_eq!(fabric.verbs(|| _ = epoch.fetch_and_op(0, Op::Sum, 1).unwrap()), [0, 0, 0, 1]);
    assert_eq!(fabric.verbs(|| _ = epoch.fetch_and_op(0, Op::NoOp, 1).unwrap()), [0, 1, 0, 0]);
    assert_eq!(fabric.verbs(|| _ = epoch.fetch_and_op(0, Op::Max, 9).unwrap()), [0, 1, 1, 0]);
    assert_eq!(fabric.verbs(|| _ = epoch.compare_and_swap(0, 1, 9).unwrap()), [0, 0, 1, 0]);
    assert_eq!(fabric.verbs(|| epoch.accumulate(0, Op::Sum, &[1; 3]).unwrap()), [0, 0, 0, 3]);
    assert_eq!(fabric.verbs(|| epoch.accumulate(0, Op::Replace, &[1; 3]).unwrap()), [0, 3, 3, 0]);
    assert_eq!(fabric.verbs(|| epoch.accumulate(0, Op::NoOp, &[1; 3]).unwrap()), [0; 4]);
    let read = || epoch.get_accumulate(0, Op::NoOp, &[1; 3], &mut wide_results).unwrap();
    assert_eq!(fabric.verbs(read), [0, 3, 0, 0]);
    // 9 bytes from byte 7 on are in 2 words.
    assert_eq!(fabric.verbs(|| _ = narrow.fetch_and_op(7, Op::Sum, 1).unwrap()), [0, 1, 1, 0]);
    assert_eq!(fabric.verbs(|| _ = narrow.compare_and_swap(7, 9, 1).unwrap()), [0, 1, 1, 0]);
    assert_eq!(fabric.verbs(|| narrow.accumulate(7, Op::Sum, &[1; 9]).unwrap()), [0, 2, 2, 0]);
    let read = || narrow.get_accumulate(7, Op::NoOp, &[1; 9], &mut results).unwrap();
    assert_eq!(fabric.verbs(read), [0, 2, 0, 0]);
    drop((epoch, narrow));
    let (wide, narrow) = (words.counters(), bytes.counters());
    assert_eq!((wide.accumulates, wide.atomics, narrow.accumulates, narrow.atomics), (4, 17 + 4, 2, 17 + 2));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        cases: ranks::rounds(256) as u32,
        ..Default::default()
    })]

    /// Any sequence of calls leaves and returns the values of the same sequence on a vector.
    #[test]
    fn random_accumulates_match_a_vector(
        calls in proptest::collection::vec((0..5usize, 0..Op::ALL.len(), 0..24usize, 0..13usize), 1..60),
        seed: u64,
    ) {
        fn check<T: Element>(calls: &[(usize, usize, usize, usize)], seed: u64) {
            const LEN: usize = 21;
            let mut random = fastrand::Rng::with_seed(seed);
            let fabric = Loopback::alone().unwrap();
            let mut window = transom::windows::Window::<T, _>::allocate(&fabric, 0, LEN).unwrap();
            let epoch = window.lock_shared(0).unwrap();
            let (mut oracle, mut found) = (vec![T::zeroed(); LEN], vec![T::zeroed(); LEN]);
            for &(kind, op, at, len) in calls {
                let len = if kind < 2 { len } else { 1 };
                let op = Op::ALL[op];
                let operands: Vec<T> = (0..len).map(|_| T::random(&mut random)).collect();
                let mut results = vec![T::zeroed(); len];
                // Either the element's own value, or one that it most likely does not have.
                let guess = if kind == 3 { oracle.get(at) } else { operands.first() };
                let guess = guess.copied().unwrap_or(T::zeroed());
                let expected = oracle.get_mut(at..at + len);
                let outcome = match kind {
                    0 => epoch.accumulate(at, op, &operands),
                    1 => epoch.get_accumulate(at, op, &operands, &mut results),
                    2 => epoch.fetch_and_op(at, op, operands[0]).map(|was| results[0] = was),
                    _ => epoch.compare_and_swap(at, guess, operands[0]).map(|was| results[0] = was),
                };
                let swap = kind >= 3;
                match expected {
                    Some(elements) if swap || T::OPERATIONS.contains(&op) => {
                        outcome.unwrap();
                        if kind > 0 {
                            assert_same(&results, elements, &(kind, op, at, len));
                        }
                        for (element, &operand) in elements.iter_mut().zip(&operands) {
                            *element = match swap {
                                true if bytemuck::bytes_of(element) == bytemuck::bytes_of(&guess) => operand,
                                true => *element,
                                false => T::model(op, *element, operand),
                            };
                        }
                    }
                    _ => assert!(outcome.is_err()),
                }
                epoch.get(0, &mut found).unwrap();
                assert_same(&found, &oracle, &(kind, op, at, len));
                // After a NaN result, the next swap must compare with the same NaN.
                oracle.copy_from_slice(&found);
            }
        }
        on_all_types!(check(&calls, seed));
    }
}
