//! Puts and gets of sections against an oracle that lists every element; and refused calls.

use crate::ranks;
use std::fmt::Debug;
use transom::{Atomic, Error, Op, Section, Window, World};

/// A section without formulas: its blocks, and the index of each of their elements.
#[derive(Debug, Default)]
struct Shape {
    /// Kind of the section, and its parameters.
    name: &'static str,
    numbers: [usize; 4],
    offsets: Vec<usize>,
    elements: Vec<usize>,
}

impl Shape {
    /// A section of a few elements, most of them below `size`.
    fn random(random: &mut fastrand::Rng, size: usize) -> Shape {
        let mut shape =
            Shape { name: random.choice(["contiguous", "strided", "tile", "indexed"]).unwrap(), ..Shape::default() };
        let offset = random.usize(0..=size);
        let (count, block, stride) = (random.usize(0..8), random.usize(0..6), random.usize(0..12));
        shape.numbers = [offset, count, block, stride];
        match shape.name {
            "contiguous" => {
                shape.numbers = [offset, count * block, 0, 0];
                (0..count * block).for_each(|i| shape.elements.push(offset + i));
            }
            "strided" | "tile" => {
                for which in 0..count {
                    (0..block).for_each(|i| shape.elements.push(offset + which * stride + i));
                }
            }
            _ => {
                for _ in 0..count {
                    // The next block is often adjacent, sometimes anywhere, seldom outside.
                    let before = shape.offsets.last().map_or(offset, |last| last + block);
                    let start = if random.bool() { before } else { random.usize(0..=size) };
                    shape.offsets.push(start);
                    (0..block).for_each(|i| shape.elements.push(start + i));
                }
            }
        }
        shape
    }

    fn section(&self) -> Section<'_> {
        let [offset, count, block, stride] = self.numbers;
        match self.name {
            "contiguous" => Section::Contiguous { offset, len: count },
            "strided" => Section::Strided { offset, count, block, stride },
            "tile" => Section::Tile { offset, rows: count, columns: block, row_length: stride },
            _ => Section::Indexed { offsets: &self.offsets, block },
        }
    }

    fn names_an_element_twice(&self) -> bool {
        let mut sorted = self.elements.clone();
        sorted.sort();
        sorted.dedup();
        sorted.len() < self.elements.len()
    }

    /// Runs of adjacent elements, in order: one put each.
    fn runs(&self) -> u64 {
        let breaks = self.elements.windows(2).filter(|pair| pair[1] != pair[0] + 1).count() as u64;
        if self.elements.is_empty() { 0 } else { breaks + 1 }
    }
}

/// Puts and gets random sections in the next rank's part, which only this rank writes, and compares all of it with a
/// copy that is written element by element.
fn against_the_oracle<T: bytemuck::Pod + PartialEq + Debug>(world: &World, shapes: u64, make: impl Fn(u64) -> T) {
    const SIZE: usize = 61;
    let mut random = fastrand::Rng::with_seed(world.rank() as u64 + 1);
    let mut window: Window<T> = world.allocate(SIZE).unwrap();
    let next = (world.rank() + 1) % world.size();
    let mut copy = vec![T::zeroed(); SIZE];
    let [mut moved, mut outside, mut twice] = [0; 3];
    for round in 0..shapes {
        let shape = Shape::random(&mut random, SIZE);
        let section = shape.section();
        assert_eq!((section.len(), section.is_empty()), (shape.elements.len(), shape.elements.is_empty()), "{shape:?}");
        let inside = shape.elements.iter().all(|&at| at < SIZE);
        let source: Vec<T> = (0..shape.elements.len()).map(|i| make(round * 100 + i as u64)).collect();

        let before = window.counters();
        let epoch = window.lock_exclusive(next).unwrap();
        match epoch.put_section(&section, &source) {
            Ok(()) => {
                assert!(inside && !shape.names_an_element_twice(), "put of {shape:?} should be refused");
                shape.elements.iter().zip(&source).for_each(|(&at, &value)| copy[at] = value);
                moved += 1;
            }
            Err(Error::OutOfBounds { window: _, rank, offset, len, size: SIZE }) => {
                assert!(!inside && rank == next && offset + len > SIZE, "{shape:?}: {offset}, {len}");
                outside += 1;
            }
            Err(Error::SectionOverlap { window: _, rank, offset }) => {
                let named = shape.elements.iter().filter(|&&at| at == offset).count();
                assert!(inside && rank == next && named > 1, "{shape:?}: {offset}");
                twice += 1;
            }
            Err(other) => panic!("{shape:?}: {other}"),
        }
        let mut got = vec![make(u64::MAX); shape.elements.len()];
        match epoch.get_section(&section, &mut got) {
            Ok(()) => {
                let expected: Vec<T> = shape.elements.iter().map(|&at| copy[at]).collect();
                assert!(inside && got == expected, "{shape:?}: found {got:?}, expected {expected:?}");
            }
            Err(Error::OutOfBounds { .. }) => {
                assert!(!inside && got.iter().all(|&value| value == make(u64::MAX)), "{shape:?}: {got:?}");
            }
            Err(other) => panic!("{shape:?}: {other}"),
        }
        let mut all = vec![T::zeroed(); SIZE];
        epoch.get(0, &mut all).unwrap();
        assert!(all == copy, "window after {shape:?}: found {all:?}, expected {copy:?}");
        epoch.unlock().unwrap();

        let done = window.counters() - before;
        let writes = if inside && !shape.names_an_element_twice() { shape.runs() } else { 0 };
        let reads = if inside { shape.runs() } else { 0 };
        assert_eq!((done.puts, done.gets), (writes, reads + 1), "{shape:?}");
    }
    window.fence().unwrap();
    assert!(
        moved.min(outside).min(twice) > shapes / 20,
        "of {shapes} sections: {moved} put, {outside} out of bounds, {twice} with repeated elements"
    );
}

#[test]
fn sections_of_any_shape_match_the_oracle() {
    ranks::on_all_sizes("sections_of_any_shape_match_the_oracle", |world| {
        against_the_oracle::<u64>(&world, ranks::rounds(2000) as u64, |n| n.wrapping_mul(0x0101_0101_0101));
    });
}

#[test]
fn sections_of_any_plain_type_match_the_oracle() {
    ranks::on_all_sizes("sections_of_any_plain_type_match_the_oracle", |world| {
        against_the_oracle::<u8>(&world, ranks::rounds(300) as u64, |n| n as u8);
        against_the_oracle::<[u8; 3]>(&world, ranks::rounds(300) as u64, |n| [n as u8, (n >> 8) as u8, 7]);
        against_the_oracle::<f32>(&world, ranks::rounds(300) as u64, |n| n as f32 / 3.0);
        against_the_oracle::<[f64; 9]>(&world, ranks::rounds(300) as u64, |n| [n as f64; 9]);
    });
}

/// Every rank owns some columns of one matrix at rank 0: writers whose elements alternate in every row.
#[test]
fn interleaved_sections_of_all_ranks_arrive() {
    ranks::on_all_sizes("interleaved_sections_of_all_ranks_arrive", |world| {
        const ROWS: usize = 37;
        let (me, n) = (world.rank(), world.size());
        let row_length = 3 * n;
        let mut window: Window<u32> = world.allocate(if me == 0 { ROWS * row_length } else { 0 }).unwrap();
        let mine: Vec<u32> = (0..3 * ROWS).map(|i| (me * 1000 + i) as u32).collect();
        let epoch = window.fence().unwrap();
        let columns = Section::Tile { offset: 3 * me, rows: ROWS, columns: 3, row_length };
        epoch.target(0).unwrap().put_section(&columns, &mine).unwrap();
        let epoch = window.fence().unwrap();
        let other = (me + 1) % n;
        let columns = Section::Strided { offset: 3 * other + 1, count: ROWS, block: 1, stride: row_length };
        let mut got = [0; ROWS];
        epoch.target(0).unwrap().get_section(&columns, &mut got).unwrap();
        assert!((0..ROWS).all(|row| got[row] == (other * 1000 + 3 * row + 1) as u32), "{got:?}");
        window.fence().unwrap();
    });
}

#[test]
fn adjoining_blocks_are_one_put() {
    ranks::on_all_sizes("adjoining_blocks_are_one_put", |world| {
        let mut window: Window<u64> = world.allocate(64).unwrap();
        let last = world.size() - 1;
        for (section, runs) in [
            (Section::Contiguous { offset: 1, len: 63 }, 1),
            (Section::Strided { offset: 1, count: 21, block: 3, stride: 3 }, 1),
            (Section::Strided { offset: 1, count: 1, block: 3, stride: usize::MAX }, 1),
            (Section::Strided { offset: 1, count: 16, block: 3, stride: 4 }, 16),
            (Section::Tile { offset: 8, rows: 7, columns: 8, row_length: 8 }, 1),
            (Section::Tile { offset: 8, rows: 7, columns: 7, row_length: 8 }, 7),
            (Section::Indexed { offsets: &[4, 8, 12, 40, 44], block: 4 }, 2),
            (Section::Indexed { offsets: &[12, 8, 4], block: 4 }, 3),
            (Section::Indexed { offsets: &[], block: 4 }, 0),
        ] {
            let mut buffer = vec![0; section.len()];
            let before = window.counters();
            let epoch = window.lock_shared(last).unwrap();
            epoch.put_section(&section, &buffer).unwrap();
            epoch.get_section(&section, &mut buffer).unwrap();
            epoch.unlock().unwrap();
            let done = window.counters() - before;
            assert_eq!((done.puts, done.gets), (runs, runs), "{section:?}");
        }
        window.fence().unwrap();
    });
}

const MAX: usize = usize::MAX;

#[test]
fn empty_sections_at_any_offset_move_nothing() {
    ranks::on_all_sizes("empty_sections_at_any_offset_move_nothing", |world| {
        let mut window: Window<u64> = world.allocate(0).unwrap();
        let epoch = window.fence().unwrap();
        let target = epoch.target(world.size() - 1).unwrap();
        for section in [
            Section::Contiguous { offset: MAX, len: 0 },
            Section::Strided { offset: MAX, count: 0, block: MAX, stride: MAX },
            Section::Strided { offset: 1, count: MAX, block: 0, stride: MAX },
            Section::Strided { offset: 1, count: MAX, block: 0, stride: 0 },
            Section::Tile { offset: MAX, rows: MAX, columns: 0, row_length: 3 },
            Section::Indexed { offsets: &[], block: MAX },
            Section::Indexed { offsets: &[MAX, 0, 0, 7], block: 0 },
        ] {
            assert!(section.is_empty());
            target.put_section(&section, &[]).unwrap();
            target.get_section(&section, &mut []).unwrap();
        }
        window.fence().unwrap();
        assert_eq!((window.counters().puts, window.counters().gets), (0, 0));
    });
}

#[test]
fn invalid_sections_are_refused_without_effect() {
    ranks::on_all_sizes("invalid_sections_are_refused_without_effect", |world| {
        let mut window: Window<u64> = world.allocate(10).unwrap();
        window.local().write(0, &[7; 10]).unwrap();
        window.fence().unwrap();
        let last = world.size() - 1;
        let epoch = window.lock_shared(last).unwrap();

        // Outside: only the last element, or sums and products that wrap around into the part.
        for section in [
            Section::Contiguous { offset: 0, len: 11 },
            Section::Contiguous { offset: MAX, len: 2 },
            Section::Strided { offset: 1, count: 4, block: 1, stride: 3 },
            Section::Strided { offset: 0, count: 2, block: 2, stride: MAX },
            Section::Strided { offset: 0, count: 2, block: 1, stride: MAX / 8 + 1 },
            Section::Strided { offset: 2, count: 3, block: 1, stride: MAX / 2 + 1 },
            Section::Strided { offset: 4, count: 5, block: 1, stride: MAX / 4 + 1 },
            Section::Strided { offset: MAX - 1, count: 2, block: 1, stride: 4 },
            Section::Tile { offset: 3, rows: 2, columns: 3, row_length: 5 },
            Section::Indexed { offsets: &[0, 2, 9], block: 2 },
            Section::Indexed { offsets: &[0, MAX, 4], block: 2 },
            Section::Indexed { offsets: &[1 << 61, 0], block: 1 },
        ] {
            let mut buffer = vec![1; section.len()];
            let tried = [epoch.put_section(&section, &buffer), epoch.get_section(&section, &mut buffer)];
            for outcome in tried {
                match outcome {
                    Err(Error::OutOfBounds { window: 0, rank, offset, len, size: 10 }) => {
                        assert!(rank == last && offset.saturating_add(len) > 10, "{section:?}: {offset}, {len}");
                    }
                    other => panic!("{section:?}: {other:?}"),
                }
            }
            assert!(buffer.iter().all(|&value| value == 1), "{section:?}");
        }

        // Blocks that overlap: a get may, a put may not.
        for (section, overlapping) in [
            (Section::Strided { offset: 2, count: 3, block: 2, stride: 1 }, 3),
            (Section::Strided { offset: 2, count: 9, block: 1, stride: 0 }, 2),
            (Section::Tile { offset: 0, rows: 2, columns: 5, row_length: 4 }, 4),
            (Section::Indexed { offsets: &[0, 4, 5], block: 2 }, 5),
            (Section::Indexed { offsets: &[8, 0, 2, 7], block: 2 }, 8),
            (Section::Indexed { offsets: &[3, 3], block: 1 }, 3),
        ] {
            let mut buffer = vec![1; section.len()];
            let put = epoch.put_section(&section, &buffer);
            match &put {
                Err(Error::SectionOverlap { window: 0, rank, offset }) if (*rank, *offset) == (last, overlapping) => {}
                other => panic!("{section:?}: {other:?}"),
            }
            let says = format!("window 0, rank {last}: element {overlapping} is in two blocks of the section to put");
            assert_eq!(put.unwrap_err().to_string(), says);
            epoch.get_section(&section, &mut buffer).unwrap();
            assert!(buffer.iter().all(|&value| value == 7), "{section:?}");
        }

        // A buffer of another length: the length is checked first.
        for (section, lengths) in [
            (Section::Contiguous { offset: 0, len: 3 }, [0, 2, 4]),
            (Section::Contiguous { offset: 0, len: MAX }, [0, 1, 10]),
            (Section::Strided { offset: 0, count: MAX / 2 + 2, block: 2, stride: 0 }, [0, 2, 10]),
            (Section::Strided { offset: 0, count: MAX / 2 + 2, block: 2, stride: 2 }, [0, 2, 10]),
            (Section::Tile { offset: 0, rows: 2, columns: 2, row_length: 4 }, [2, 3, 6]),
            (Section::Indexed { offsets: &[0, 4, 8], block: 2 }, [0, 3, 7]),
            (Section::Indexed { offsets: &[0, 4], block: MAX }, [0, 2, 10]),
        ] {
            for length in lengths {
                let mut buffer = vec![1; length];
                let tried = [epoch.put_section(&section, &buffer), epoch.get_section(&section, &mut buffer)];
                for outcome in tried {
                    match outcome {
                        Err(Error::BufferLength { window: 0, rank, needed: is, buffer })
                            if (rank, is, buffer) == (last, section.len(), length) => {}
                        other => panic!("{section:?}, {length}: {other:?}"),
                    }
                }
                assert!(buffer.iter().all(|&value| value == 1), "{section:?}");
            }
        }

        epoch.unlock().unwrap();
        window.fence().unwrap();
        assert_eq!(window.local().read(0, 10).unwrap(), [7; 10]);
        assert_eq!(window.counters().puts, 0);
    });
}

/// Accumulates by one instruction each, or by swaps that are retried: the result is that of a vector, and none is
/// lost.
#[test]
fn scattered_accumulates_match_a_vector() {
    ranks::on_all_sizes("scattered_accumulates_match_a_vector", |world| {
        let (me, n) = (world.rank(), world.size());
        let mut window: Window<u64> = world.allocate(50).unwrap();
        let next = (me + 1) % n;
        for op in [Op::Sum, Op::And, Op::Or, Op::Xor, Op::Replace, Op::Min] {
            for len in [0, 1, 3, 4, 5, 8, 23] {
                let mut model: Vec<u64> = (0..50).map(|i| 0xabcd_1234_5678 ^ i << 20).collect();
                window.local().write(0, &model).unwrap();
                window.fence().unwrap();
                // Some elements occur more than once.
                let offsets: Vec<usize> = (0..len).map(|i| (i * i * 7 + 49) % 50).collect();
                let operands: Vec<u64> = (0..len as u64).map(|i| (i + 3) * 0x1111_2222_3333).collect();
                let section = Section::Indexed { offsets: &offsets, block: 1 };
                window.lock_shared(next).unwrap().accumulate_section(&section, op, &operands).unwrap();
                for (&at, &operand) in offsets.iter().zip(&operands) {
                    model[at] = u64::apply(op, model[at], operand);
                }
                window.fence().unwrap();
                assert_eq!(window.local().read(0, 50).unwrap(), model, "{op:?}, {len}");
                window.fence().unwrap();
            }
        }
        window.local().write(0, &[0; 50]).unwrap();
        window.fence().unwrap();
        let offsets: Vec<usize> = (0..50).chain(0..50).collect();
        let before = window.counters();
        for _ in 0..ranks::rounds(100) {
            let section = Section::Indexed { offsets: &offsets, block: 1 };
            window.lock_shared(0).unwrap().accumulate_section(&section, Op::Sum, &[1; 100]).unwrap();
        }
        assert!((window.counters() - before).accumulates > 0);
        window.fence().unwrap();
        let all = window.lock_shared(0).unwrap().rget(0, 50).unwrap().wait().unwrap();
        assert_eq!(all, [2 * (n * ranks::rounds(100)) as u64; 50]);
        window.fence().unwrap();
    });
}
