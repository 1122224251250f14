//! Patches of global arrays beside loops over their elements, and calls on an element beside those of a window, in one
//! run: `cargo bench --bench arrays`.
//!
//! Four ranks are threads; rank 0 measures while the others sleep in a barrier. Each row's two sides are measured in turn; its
//! ratio is the median of the pairs' ratios, so a machine that changes its speed meanwhile changes both sides.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;
use transom::array::Layout;
use transom::{Distribution, Error, GlobalArray, Op, Window, World};

const SAMPLES: usize = 31;
const RANKS: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let measured = transom::threads(RANKS, |world| -> Result<(), Error> {
        let million = 1 << 20;
        patch(&world, "1-D cyclic, 1 Mi", Layout::new([million], Distribution::Cyclic, RANKS)?, [0..million])?;
        patch(&world, "1-D cyclic, 16 Ki", Layout::new([million], Distribution::Cyclic, RANKS)?, [77..77 + (1 << 14)])?;
        patch(&world, "1-D cyclic, 100", Layout::new([million], Distribution::Cyclic, RANKS)?, [77..177])?;
        let blocks = Layout::new([million], Distribution::BlockCyclic([16]), RANKS)?;
        patch(&world, "1-D blocks of 16, 16 Ki", blocks, [77..77 + (1 << 14)])?;
        patch(&world, "1-D block, 1 Mi", Layout::new([million], Distribution::Block, RANKS)?, [0..million])?;
        patch(&world, "1-D block, 16 Ki", Layout::new([million], Distribution::Block, RANKS)?, [77..77 + (1 << 14)])?;
        let cyclic = Layout::new([1000, 1000], Distribution::Cyclic, RANKS)?;
        patch(&world, "2-D cyclic, 128 x 128", cyclic, [3..131, 5..133])?;
        let tiles = Layout::new([1000, 1000], Distribution::BlockCyclic([16, 16]), RANKS)?;
        patch(&world, "2-D tiles of 16 x 16, 128 x 128", tiles, [3..131, 5..133])?;
        patch(&world, "2-D tiles of 16 x 16, a column", tiles, [0..1000, 17..18])?;
        let rows = Layout::on_grid([1000, 3], Distribution::BlockCyclic([1, 3]), [RANKS, 1])?;
        patch(&world, "rows of 3, cyclic", rows, [0..1000, 0..3])?;
        elements(&world)
    })?;
    Ok(measured.into_iter().collect::<Result<(), _>>()?)
}

/// Gets, puts and sums up a patch, by one call and by a call on each element.
fn patch<const D: usize>(world: &World, name: &str, layout: Layout<D>, ranges: [Range<usize>; D]) -> Result<(), Error> {
    let mut array: GlobalArray<u64, D> = world.array_on(layout)?;
    array.fence()?;
    if world.rank() == 0 {
        let epoch = array.lock_all()?;
        let len = ranges.iter().map(Range::len).product::<usize>();
        let (mut buffer, count) = (vec![1; len], 1.max((1 << 18) / len));
        let index = |mut number: usize| {
            let mut index = [0; D];
            for d in (0..D).rev() {
                index[d] = ranges[d].start + number % ranges[d].len();
                number /= ranges[d].len();
            }
            index
        };
        let indices: Vec<[usize; D]> = (0..len).map(index).collect();
        let mut other = buffer.clone();
        compare(
            &format!("get {name}"),
            len * count,
            || (0..count).try_for_each(|_| epoch.get(ranges.clone(), black_box(&mut buffer))),
            || {
                (0..count).try_for_each(|_| {
                    indices.iter().zip(&mut other).try_for_each(|(&index, into)| {
                        *into = epoch.get_one(black_box(index))?;
                        Ok(())
                    })
                })
            },
        )?;
        compare(
            &format!("put {name}"),
            len * count,
            || (0..count).try_for_each(|_| epoch.put(ranges.clone(), black_box(&buffer))),
            || {
                (0..count).try_for_each(|_| {
                    indices.iter().zip(&other).try_for_each(|(&index, &from)| epoch.put_one(black_box(index), from))
                })
            },
        )?;
    }
    world.barrier()
}

/// Calls on an element of an array, beside those on an element of a window.
fn elements(world: &World) -> Result<(), Error> {
    let mut window: Window<u64> = world.allocate(1 << 10)?;
    let mut line: GlobalArray<u64> = world.array([1 << 12], Distribution::Block)?;
    let mut cyclic: GlobalArray<u64> = world.array([1 << 12], Distribution::Cyclic)?;
    let mut plane: GlobalArray<u64, 2> = world.array([64, 64], Distribution::BlockCyclic([16, 16]))?;
    world.barrier()?;
    if world.rank() == 0 {
        let window = window.lock_all()?;
        one("of an array in blocks", &line.lock_all()?, |i| i, &window)?;
        one("of a cyclic array", &cyclic.lock_all()?, |i| i, &window)?;
        one("of an array in tiles", &plane.lock_all()?, |i| [i / 64, i % 64], &window)?;
    }
    world.barrier()
}

fn one<const D: usize, I: transom::array::Index<u64, D>>(
    name: &str,
    array: &transom::array::Access<'_, transom::windows::LockAllEpoch<'_, u64, transom::provider::Provider>, D>,
    index: impl Fn(usize) -> I,
    window: &transom::windows::LockAllEpoch<'_, u64, transom::provider::Provider>,
) -> Result<(), Error> {
    const COUNT: usize = 1 << 16;
    let places = || (0..COUNT).map(|i| black_box(i * 5 % 4096));
    compare(
        &format!("get_one {name}"),
        COUNT,
        || places().try_for_each(|i| array.get_one(index(i)).map(|value| _ = black_box(value))),
        || places().try_for_each(|i| window.target(i & 3)?.get_one(i >> 2).map(|value| _ = black_box(value))),
    )?;
    compare(
        &format!("put_one {name}"),
        COUNT,
        || places().try_for_each(|i| array.put_one(index(i), i as u64)),
        || places().try_for_each(|i| window.target(i & 3)?.put(i >> 2, &[i as u64])),
    )?;
    compare(
        &format!("fetch_and_op {name}"),
        COUNT,
        || places().try_for_each(|i| array.fetch_and_op(index(i), Op::Sum, 1).map(drop)),
        || places().try_for_each(|i| window.target(i & 3)?.fetch_and_op(i >> 2, Op::Sum, 1).map(drop)),
    )
}

/// Prints what each of `count` elements takes on both sides.
fn compare(
    name: &str,
    count: usize,
    mut ours: impl FnMut() -> Result<(), Error>,
    mut other: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut pairs = Vec::new();
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        ours()?;
        let middle = Instant::now();
        other()?;
        let nanoseconds = |time: std::time::Duration| time.as_secs_f64() * 1e9 / count as f64;
        pairs.push((nanoseconds(middle - begun), nanoseconds(middle.elapsed())));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[SAMPLES / 2]
    };
    println!(
        "{name:<40} {:>8.2} {:>8.2} ns  ratio {:>6.2}",
        median(|pair| pair.0),
        median(|pair| pair.1),
        median(|pair| pair.1 / pair.0)
    );
    Ok(())
}
