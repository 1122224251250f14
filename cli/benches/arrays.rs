//! Patches of global arrays beside loops over their elements, and an array of mutexes as it is made:
//! `cargo bench --bench arrays`. (Calls on single elements: `transom bench element_get element_put element_fetch`.)
//!
//! The four ranks are threads; rank 0 measures while the others sleep. Both sides of a row are measured in turn, and
//! its ratio is the median of the pairs' ratios. A change of the machine's speed thus affects both.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use transom::array::Layout;
use transom::{Distribution, Error, GlobalArray, World};

const RANKS: usize = 4;
const SAMPLES: usize = 51;

fn main() -> Result<(), Error> {
    let end = Barrier::new(RANKS);
    let measured = transom::threads(RANKS, |world| -> Result<(), Error> {
        patches(&world)?;
        mutexes(&world)?;
        end.wait();
        Ok(())
    })?;
    measured.into_iter().collect()
}

#[allow(clippy::single_range_in_vec_init, reason = "a patch in one dimension")]
fn patches(world: &World) -> Result<(), Error> {
    const LONG: usize = 1 << 20;
    print(world, format_args!("{:<37} {:>8} {:>8} ns for an element", "a patch beside a loop", "patch", "loop"));
    let line = |distribution| Layout::new([LONG], distribution, RANKS);
    let cyclic = line(Distribution::Cyclic)?;
    patch(world, "cyclic, 100 elements", cyclic, [77..177])?;
    patch(world, "cyclic, 16 Ki", cyclic, [77..77 + (1 << 14)])?;
    patch(world, "cyclic, 1 Mi", cyclic, [0..LONG])?;
    patch(world, "blocks of 16, 16 Ki", line(Distribution::BlockCyclic([16]))?, [77..77 + (1 << 14)])?;
    patch(world, "block, 16 Ki", line(Distribution::Block)?, [77..77 + (1 << 14)])?;
    patch(world, "block, 1 Mi", line(Distribution::Block)?, [0..LONG])?;
    let plane = |distribution| Layout::new([1000, 1000], distribution, RANKS);
    patch(world, "plane, cyclic, 128 x 128", plane(Distribution::Cyclic)?, [3..131, 5..133])?;
    let tiles = plane(Distribution::BlockCyclic([16, 16]))?;
    patch(world, "plane, tiles of 16 x 16, 128 x 128", tiles, [3..131, 5..133])?;
    patch(world, "plane, tiles of 16 x 16, a column", tiles, [0..1000, 17..18])?;
    let rows = Layout::on_grid([1000, 3], Distribution::BlockCyclic([1, 3]), [RANKS, 1])?;
    patch(world, "rows of 3, cyclic", rows, [0..1000, 0..3])
}

/// Gets and puts a patch by one call, and by a call on each element.
fn patch<const D: usize>(world: &World, name: &str, layout: Layout<D>, patch: [Range<usize>; D]) -> Result<(), Error> {
    let mut array: GlobalArray<u64, D> = world.array_on(layout)?;
    let len = patch.iter().map(Range::len).product::<usize>();
    if world.rank() > 0 {
        return Ok(());
    }
    let epoch = array.lock_all()?;
    let (mut ours, mut other) = (vec![1; len], vec![1; len]);
    let times = ((1 << 17) / len).max(1);
    compare(
        &format!("get {name}"),
        len * times,
        || (0..times).try_for_each(|_| epoch.get(patch.clone(), black_box(&mut ours))),
        || {
            (0..times).try_for_each(|_| {
                each_index(&patch, |number, index| epoch.get_one(index).map(|one| other[number] = one))
            })
        },
    )?;
    compare(
        &format!("put {name}"),
        len * times,
        || (0..times).try_for_each(|_| epoch.put(patch.clone(), black_box(&ours))),
        || (0..times).try_for_each(|_| each_index(&patch, |number, index| epoch.put_one(index, other[number]))),
    )
}

/// Calls `each` with every index of a patch, in row-major order, and its number in the patch.
fn each_index<const D: usize>(
    patch: &[Range<usize>; D],
    mut each: impl FnMut(usize, [usize; D]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut index: [usize; D] = std::array::from_fn(|d| patch[d].start);
    for number in 0..patch.iter().map(Range::len).product() {
        each(number, black_box(index))?;
        for d in (0..D).rev() {
            index[d] += 1;
            if index[d] < patch[d].end {
                break;
            }
            index[d] = patch[d].start;
        }
    }
    Ok(())
}

/// All ranks make them, and rank 0 measures the time.
fn mutexes(world: &World) -> Result<(), Error> {
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        world.barrier()?;
        let begun = Instant::now();
        drop(black_box(world.mutexes(1000, |_| 0u64)?));
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    let (median, worst) = (times[SAMPLES / 2], times[SAMPLES - 1]);
    print(world, format_args!("1,000 mutexes made and dropped: {median:.2} ms, at worst {worst:.2}; at most 5"));
    Ok(())
}

fn compare(
    name: &str,
    count: usize,
    mut ours: impl FnMut() -> Result<(), Error>,
    mut other: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let nanoseconds = |time: Duration| time.as_secs_f64() * 1e9 / count as f64;
    let mut pairs = Vec::new();
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        ours()?;
        let between = Instant::now();
        other()?;
        pairs.push((nanoseconds(between - begun), nanoseconds(between.elapsed())));
    }
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = pairs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[SAMPLES / 2]
    };
    let (ours, other, ratio) = (median(|pair| pair.0), median(|pair| pair.1), median(|pair| pair.1 / pair.0));
    println!("{name:<37} {ours:>8.2} {other:>8.2} {ratio:>6.2} times as fast");
    Ok(())
}

fn print(world: &World, line: std::fmt::Arguments<'_>) {
    if world.rank() == 0 {
        println!("{line}");
    }
}
