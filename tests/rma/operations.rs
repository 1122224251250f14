//! Results of each operation on each type, as literals: by every call that applies operations, in every kind of epoch,
//! and by collectives.

use crate::arithmetic;
use crate::ranks;

use arithmetic::Model;
use std::fmt::Debug;
use transom::{Assert, Atomic, Mode, Op, Window, World};

/// An element, an operand, and the result.
type Row<T> = (Op, T, T, T);

use Op::*;

/// Rows that are the same for all integers: small numbers.
macro_rules! small {
    () => {
        [
            (Sum, 3, 4, 7),
            (Prod, 3, 4, 12),
            (Min, 3, 4, 3),
            (Min, 4, 3, 3),
            (Max, 3, 4, 4),
            (Max, 4, 3, 4),
            (And, 12, 10, 8),
            (Or, 12, 10, 14),
            (Xor, 12, 10, 6),
            (LogicalAnd, 6, 9, 1),
            (LogicalAnd, 6, 0, 0),
            (LogicalAnd, 0, 9, 0),
            (LogicalAnd, 0, 0, 0),
            (LogicalOr, 6, 9, 1),
            (LogicalOr, 6, 0, 1),
            (LogicalOr, 0, 9, 1),
            (LogicalOr, 0, 0, 0),
            (LogicalXor, 6, 9, 0),
            (LogicalXor, 6, 0, 1),
            (LogicalXor, 0, 9, 1),
            (LogicalXor, 0, 0, 0),
            (Replace, 1, 2, 2),
            (NoOp, 1, 2, 1),
        ]
    };
}

/// Operations of signed integers.
macro_rules! signed {
    () => {
        [
            (Sum, 3, -4, -1),
            (Prod, 3, -4, -12),
            (Min, -3, 2, -3),
            (Max, -3, 2, 2),
            (And, -2, 7, 6),
            (Or, -8, 3, -5),
            (Xor, -1, 5, -6),
            (LogicalAnd, -1, -2, 1),
            (LogicalOr, -1, 0, 1),
            (LogicalXor, -1, 0, 1),
            (Replace, -1, -2, -2),
            (NoOp, -1, -2, -1),
        ]
    };
}

/// Sums and products that wrap; and the greatest and least.
const U8: [Row<u8>; 4] = [(Sum, 250, 10, 4), (Prod, 20, 13, 4), (Min, 255, 0, 0), (Max, 127, 128, 128)];
const U16: [Row<u16>; 4] =
    [(Sum, 65_530, 10, 4), (Prod, 300, 300, 24_464), (Min, 65_535, 0, 0), (Max, 32_767, 32_768, 32_768)];
const U32: [Row<u32>; 4] = [
    (Sum, 4_294_967_290, 10, 4),
    (Prod, 70_000, 70_000, 605_032_704),
    (Min, 4_294_967_295, 0, 0),
    (Max, 2_147_483_647, 2_147_483_648, 2_147_483_648),
];
const U64: [Row<u64>; 4] = [
    (Sum, 18_446_744_073_709_551_610, 10, 4),
    (Prod, 5_000_000_000, 5_000_000_000, 6_553_255_926_290_448_384),
    (Min, 18_446_744_073_709_551_615, 0, 0),
    (Max, 9_223_372_036_854_775_807, 9_223_372_036_854_775_808, 9_223_372_036_854_775_808),
];
const I8: [Row<i8>; 4] = [(Sum, 120, 10, -126), (Prod, -20, 13, -4), (Min, 127, -128, -128), (Max, -128, 127, 127)];
const I16: [Row<i16>; 4] =
    [(Sum, 32_760, 10, -32_766), (Prod, -300, 300, -24_464), (Min, 32_767, -32_768, -32_768), (Max, -32_768, 0, 0)];
const I32: [Row<i32>; 4] = [
    (Sum, 2_147_483_640, 10, -2_147_483_646),
    (Prod, -70_000, 70_000, -605_032_704),
    (Min, 2_147_483_647, -2_147_483_648, -2_147_483_648),
    (Max, -2_147_483_648, 0, 0),
];
const I64: [Row<i64>; 4] = [
    (Sum, 9_223_372_036_854_775_800, 10, -9_223_372_036_854_775_806),
    (Prod, -5_000_000_000, 5_000_000_000, -6_553_255_926_290_448_384),
    (Min, 9_223_372_036_854_775_807, -9_223_372_036_854_775_808, -9_223_372_036_854_775_808),
    (Max, -9_223_372_036_854_775_808, 0, 0),
];

macro_rules! floats {
    ($type:ident) => {
        [
            (Sum, 1.5, 2.25, 3.75),
            (Sum, 1.0, $type::INFINITY, $type::INFINITY),
            (Prod, 1.5, -2.0, -3.0),
            (Min, 1.5, -2.0, -2.0),
            (Min, -2.0, 1.5, -2.0),
            (Min, $type::NAN, 1.0, 1.0),
            (Min, 1.0, $type::NAN, 1.0),
            (Max, 1.5, -2.0, 1.5),
            (Max, -2.0, 1.5, 1.5),
            (Max, $type::NAN, 1.0, 1.0),
            (Max, 1.0, $type::NAN, 1.0),
            (Replace, 1.5, -2.5, -2.5),
            (NoOp, 1.5, -2.5, 1.5),
        ]
    };
}

/// Every call that applies operations gives the table's results, at one element, at two, and at more than fit a word.
fn check<T: Atomic + Model + PartialEq + Debug>(world: &World, rows: &[&[Row<T>]]) {
    let rows: Vec<Row<T>> = rows.concat();
    let all: Vec<Op> = Op::ALL.into_iter().filter(|&op| rows.iter().any(|row| row.0 == op)).collect();
    assert_eq!(
        all,
        Op::ALL.into_iter().filter(|op| T::OPERATIONS.contains(op)).collect::<Vec<_>>(),
        "table has no row for an operation"
    );
    for (op, element, operand, expected) in &rows {
        assert_eq!(T::apply(*op, *element, *operand), *expected, "{op:?} of {element:?} and {operand:?}");
        assert_eq!(T::model(*op, *element, *operand), *expected, "the model: {op:?} of {element:?} and {operand:?}");
    }
    let target = (world.rank() + 1) % world.size(); // no other rank's
    // A short accumulate of user memory is alone, too.
    for mut window in [world.allocate::<T>(24).unwrap(), world.create(vec![T::zeroed(); 24]).unwrap()] {
        for mode in [Mode::Shared, Mode::Exclusive] {
            let epoch = window.lock_with(target, mode, Assert::empty()).unwrap();
            for &(op, element, operand, expected) in &rows {
                for len in [1, 2, 20] {
                    let what = (op, element, operand, len, mode);
                    let put = || {
                        epoch.put(0, &[element; 24]).unwrap();
                        epoch.flush().unwrap();
                    };
                    let is = |value: T, places: usize| {
                        epoch.flush().unwrap();
                        let mut found = [operand; 24];
                        epoch.get(0, &mut found).unwrap();
                        // Bits are compared, as in the table: no row expects a NaN, but the elements beside may be
                        // NaN.
                        assert_eq!(found[1..1 + places], vec![value; places], "{what:?}");
                        let same = |beside: &T| bytemuck::bytes_of(beside) == bytemuck::bytes_of(&element);
                        assert!(same(&found[0]) && same(&found[1 + places]), "{what:?}: {found:?}");
                    };
                    put();
                    epoch.accumulate(1, op, &vec![operand; len]).unwrap();
                    is(expected, len);
                    put();
                    let mut were = vec![operand; len];
                    epoch.get_accumulate(1, op, &vec![operand; len], &mut were).unwrap();
                    let same = |was: &T| bytemuck::bytes_of(was) == bytemuck::bytes_of(&element);
                    assert!(were.iter().all(same), "{what:?}: {were:?}");
                    is(expected, len);
                    if len == 1 {
                        put();
                        assert!(same(&epoch.fetch_and_op(1, op, operand).unwrap()), "{what:?}");
                        is(expected, 1);
                    }
                }
            }
            epoch.unlock().unwrap();
        }
        world.barrier().unwrap();
    }
}

#[test]
fn integer_operations_match_the_table() {
    ranks::on(&[1, 2, 3], "integer_operations_match_the_table", |world| {
        check::<u8>(&world, &[&small!(), &U8]);
        check::<u16>(&world, &[&small!(), &U16]);
        check::<u32>(&world, &[&small!(), &U32]);
        check::<u64>(&world, &[&small!(), &U64]);
        check::<i8>(&world, &[&small!(), &signed!(), &I8]);
        check::<i16>(&world, &[&small!(), &signed!(), &I16]);
        check::<i32>(&world, &[&small!(), &signed!(), &I32]);
        check::<i64>(&world, &[&small!(), &signed!(), &I64]);
    });
}

#[test]
fn float_operations_match_the_table() {
    ranks::on(&[1, 2, 3], "float_operations_match_the_table", |world| {
        check::<f32>(&world, &[&floats!(f32)]);
        check::<f64>(&world, &[&floats!(f64)]);
    });
}

/// A collective reduces the element of rank 0 and the operand of rank 1 to the same, at both.
fn check_folds<T: Atomic + Model + PartialEq + Debug>(world: &World, rows: &[&[Row<T>]]) {
    for &(op, element, operand, expected) in rows.concat().iter() {
        for len in [1, 2, 20, 3000] {
            let mut data = vec![[element, operand][world.rank()]; len];
            let folded = world.all_reduce(&mut data, op);
            // These operations reduce nothing, and are refused at once.
            if matches!(op, Replace | NoOp) {
                let error = folded.unwrap_err().to_string();
                assert!(error.contains("does not reduce"), "{error}");
                continue;
            }
            folded.unwrap();
            assert_eq!(data, vec![expected; len], "{op:?} of {element:?} and {operand:?}, {len} elements");
        }
    }
}

#[test]
fn collective_operations_match_the_table() {
    for variables in ranks::each(&[&[][..], ranks::BY_MESSAGES]) {
        ranks::on_with(variables, &[2], "collective_operations_match_the_table", |world| {
            check_folds::<u8>(&world, &[&small!(), &U8]);
            check_folds::<u16>(&world, &[&small!(), &U16]);
            check_folds::<u32>(&world, &[&small!(), &U32]);
            check_folds::<u64>(&world, &[&small!(), &U64]);
            check_folds::<i8>(&world, &[&small!(), &signed!(), &I8]);
            check_folds::<i16>(&world, &[&small!(), &signed!(), &I16]);
            check_folds::<i32>(&world, &[&small!(), &signed!(), &I32]);
            check_folds::<i64>(&world, &[&small!(), &signed!(), &I64]);
            check_folds::<f32>(&world, &[&floats!(f32)]);
            check_folds::<f64>(&world, &[&floats!(f64)]);
        });
    }
}

/// Equality is bit for bit: the two zeros differ, and a NaN equals itself.
#[test]
fn compare_and_swap_compares_bits() {
    ranks::on(&[1, 2], "compare_and_swap_compares_bits", |world| {
        let mut window: Window<f64> = world.allocate(3).unwrap();
        let mut narrow: Window<i16> = world.allocate(6).unwrap();
        let target = (world.rank() + 1) % world.size();
        let epoch = window.lock_shared(target).unwrap();
        epoch.put(0, &[0.0, -0.0, f64::NAN]).unwrap();
        epoch.flush().unwrap();
        assert_eq!(epoch.compare_and_swap(0, -0.0, 5.0).unwrap(), 0.0);
        assert_eq!(epoch.compare_and_swap(1, -0.0, 6.0).unwrap(), 0.0);
        assert!(epoch.compare_and_swap(2, f64::NAN, 7.0).unwrap().is_nan());
        let mut found = [9.0; 3];
        epoch.get(0, &mut found).unwrap();
        assert_eq!(found, [0.0, 6.0, 7.0]);
        epoch.unlock().unwrap();
        let epoch = narrow.lock_shared(target).unwrap();
        epoch.put(0, &[1, -2, 3, 4, 5, 6]).unwrap();
        epoch.flush().unwrap();
        assert_eq!(epoch.compare_and_swap(1, -2, 20).unwrap(), -2);
        assert_eq!(epoch.compare_and_swap(4, -5, 50).unwrap(), 5);
        let mut found = [9; 6];
        epoch.get(0, &mut found).unwrap();
        assert_eq!(found, [1, 20, 3, 4, 5, 6]);
        epoch.unlock().unwrap();
        world.barrier().unwrap();
    });
}
