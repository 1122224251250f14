//! `all_to_all_sections` between two processes beside `all_to_all_v_into` with the packing and unpacking of a program,
//! in turn: `cargo bench --bench sections`. Times are those of a rank's thread on its core, so that other programs
//! disturb less.

mod on_core;

use on_core::on_core;
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::{Error, Launch, Op, Section, World};

/// Largest ratio of the call to the work by hand.
const MOST: f64 = 1.3;

/// Layout of a rank's blocks, on either side.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// Side by side.
    Contiguous,
    /// Every second block of this many elements.
    Strided(usize),
    /// Every second element, listed in ascending order.
    Ascending,
    /// Every second element, listed column by column of a matrix of 64 columns.
    Columns,
}

use Layout::{Ascending, Columns, Contiguous, Strided};

const LAYOUTS: [[Layout; 2]; 8] = [
    [Contiguous, Contiguous],
    [Contiguous, Strided(1)],
    [Strided(1), Contiguous],
    [Strided(1), Strided(1)],
    [Strided(3), Strided(3)],
    [Strided(64), Strided(64)],
    [Contiguous, Ascending],
    [Contiguous, Columns],
];

/// Elements of a block for each rank.
const LENGTHS: [usize; 4] = [64, 4032, 64_512, 524_160];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|arg| arg == "rank") {
        return Ok(rank(&transom::init()?)?);
    }
    let launch = Launch::new(std::env::current_exe()?, 2).args(["rank"]).deadline(Duration::from_secs(600));
    let outcome = launch.run()?;
    match outcome.success() {
        true => Ok(()),
        false => Err(outcome.to_string().into()),
    }
}

/// The elements of a rank's block, of `len` elements.
struct Blocks {
    layout: Layout,
    len: usize,
    offsets: Vec<usize>,
}

impl Blocks {
    fn new(layout: Layout, len: usize, rank: usize) -> Blocks {
        let start = 2 * len * rank;
        let offsets = match layout {
            Contiguous | Strided(_) => Vec::new(),
            Ascending => (0..len).map(|i| start + 2 * i).collect(),
            Columns => (0..len).map(|i| start + 2 * (i % (len / 64) * 64 + i / (len / 64))).collect(),
        };
        Blocks { layout, len, offsets }
    }

    fn section(&self, rank: usize) -> Section<'_> {
        let offset = 2 * self.len * rank;
        match self.layout {
            Contiguous => Section::Contiguous { offset: self.len * rank, len: self.len },
            Strided(block) => Section::Strided { offset, count: self.len / block, block, stride: 2 * block },
            Ascending | Columns => Section::Indexed { offsets: &self.offsets, block: 1 },
        }
    }

    /// Packs the blocks by hand, as a program would.
    fn pack(&self, rank: usize, data: &[f32], packed: &mut [f32]) {
        let offset = 2 * self.len * rank;
        match self.layout {
            Contiguous => packed.copy_from_slice(&data[self.len * rank..][..self.len]),
            Strided(1) => packed.iter_mut().enumerate().for_each(|(i, to)| *to = data[offset + 2 * i]),
            Strided(block) => packed
                .chunks_exact_mut(block)
                .enumerate()
                .for_each(|(i, to)| to.copy_from_slice(&data[offset + 2 * block * i..][..block])),
            Ascending | Columns => packed.iter_mut().zip(&self.offsets).for_each(|(to, &at)| *to = data[at]),
        }
    }

    fn unpack(&self, rank: usize, packed: &[f32], into: &mut [f32]) {
        let offset = 2 * self.len * rank;
        match self.layout {
            Contiguous => into[self.len * rank..][..self.len].copy_from_slice(packed),
            Strided(1) => packed.iter().enumerate().for_each(|(i, from)| into[offset + 2 * i] = *from),
            Strided(block) => packed
                .chunks_exact(block)
                .enumerate()
                .for_each(|(i, from)| into[offset + 2 * block * i..][..block].copy_from_slice(from)),
            Ascending | Columns => packed.iter().zip(&self.offsets).for_each(|(from, &at)| into[at] = *from),
        }
    }
}

struct Row {
    layouts: [Layout; 2],
    bytes: usize,
    by_hand: f64,
    call: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layouts = format!("{:?} -> {:?}", self.layouts[0], self.layouts[1]);
        let Row { bytes, by_hand, call, .. } = self;
        write!(f, "{layouts:<28} {bytes:>9} B {:>10.2} {:>10.2} {:>7.2}", by_hand / 1e3, call / 1e3, call / by_hand)
    }
}

fn rank(world: &World) -> Result<(), Error> {
    if world.rank() == 0 {
        println!("{:<28} {:>11} {:>10} {:>10} {:>7}", "layout", "to each", "by hand us", "call us", "ratio");
    }
    let mut beyond = 0;
    for layouts in LAYOUTS {
        for len in LENGTHS {
            let row = timed(world, layouts, len)?;
            if world.rank() == 0 {
                println!("{row}{}", if row.call > MOST * row.by_hand { "   beyond" } else { "" });
                beyond += usize::from(row.call > MOST * row.by_hand);
            }
        }
    }
    if beyond > 0 {
        println!("{beyond} rows take more than {MOST} times the work by hand");
    }
    Ok(())
}

fn timed(world: &World, layouts: [Layout; 2], len: usize) -> Result<Row, Error> {
    let ranks = world.size();
    let blocks = layouts.map(|layout| (0..ranks).map(|rank| Blocks::new(layout, len, rank)).collect::<Vec<_>>());
    let sections = [0, 1].map(|side| {
        let sections = blocks[side].iter().enumerate().map(|(rank, blocks)| blocks.section(rank));
        sections.collect::<Vec<_>>()
    });
    let data: Vec<f32> = (0..2 * len * ranks).map(|i| i as f32).collect();
    let mut into = vec![0.0; 2 * len * ranks];
    let (mut packed, mut came) = (vec![0.0; len * ranks], vec![0.0; len * ranks]);
    let counts = vec![len; ranks];
    let in_place = layouts.map(|layout| matches!(layout, Contiguous));
    let mut by_hand = |into: &mut Vec<f32>| -> Result<(), Error> {
        // Adjacent blocks need neither.
        let given = if in_place[0] {
            &data[..len * ranks]
        } else {
            let each = packed.chunks_exact_mut(len).zip(&blocks[0]).enumerate();
            each.for_each(|(rank, (packed, blocks))| blocks.pack(rank, &data, packed));
            &packed[..]
        };
        if in_place[1] {
            world.all_to_all_v_into(given, &counts, &mut into[..len * ranks], &counts)?;
        } else {
            world.all_to_all_v_into(given, &counts, &mut came, &counts)?;
            let each = came.chunks_exact(len).zip(&blocks[1]).enumerate();
            each.for_each(|(rank, (came, blocks))| blocks.unpack(rank, came, into));
        }
        black_box(into);
        Ok(())
    };
    let by_call = |into: &mut Vec<f32>| -> Result<(), Error> {
        world.all_to_all_sections(&data, &sections[0], into, &sections[1])?;
        black_box(into);
        Ok(())
    };
    by_hand(&mut into)?;
    let want = std::mem::replace(&mut into, vec![0.0; 2 * len * ranks]);
    by_call(&mut into)?;
    assert!(into == want, "the same elements arrive");
    // Some kernels update a thread's core time only at each tick of 4 ms.
    let begun = Instant::now();
    by_hand(&mut into)?;
    let calls = world.all_reduce_one(0.1 / begun.elapsed().as_secs_f64(), Op::Min)?.clamp(4.0, 1e5) as usize;
    let mut best = [f64::MAX; 2];
    for _ in 0..5 {
        world.barrier()?;
        let begun = on_core();
        (0..calls).try_for_each(|_| by_hand(&mut into))?;
        best[0] = best[0].min((on_core() - begun) / calls as f64);
        world.barrier()?;
        let begun = on_core();
        (0..calls).try_for_each(|_| by_call(&mut into))?;
        best[1] = best[1].min((on_core() - begun) / calls as f64);
    }
    Ok(Row { layouts, bytes: len * size_of::<f32>(), by_hand: best[0], call: best[1] })
}
