//! An all-to-all by pipes, as an MPI over the byte pipe of MPICH2 does it: each rank puts a block into the pipe to a
//! partner, and reads the partner's block from it.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use std::io::Read as _;
use std::ops::Range;
use transom::pipe::Pipe;
use transom::{Rank, Section, World};

pub struct Pipes {
    me: Rank,
    /// To each rank, except to this rank itself.
    pipes: Vec<Option<Pipe>>,
    /// Memory of the block that is put: kept for the next one.
    block: Vec<u8>,
}

impl Pipes {
    /// Collective, on a power of two ranks: opens a pipe to each other rank.
    pub fn open(world: &World) -> Result<Self, transom::Error> {
        let (me, mut pipes) = (world.rank(), Vec::new());
        pipes.resize_with(world.size(), || None);
        for round in 1..world.size() {
            pipes[me ^ round] = Some(world.pipe(me ^ round)?);
        }
        Ok(Pipes { me, pipes, block: Vec::new() })
    }

    /// Collective: copies section `given[rank]` of `data` to each rank, which stores it in its section `taken` of this
    /// rank. Sections are contiguous or strided.
    pub fn all_to_all<T: Pod>(
        &mut self,
        data: &[T],
        given: &[Section],
        into: &mut [T],
        taken: &[Section],
    ) -> Result<(), transom::Error> {
        for round in 0..self.pipes.len() {
            let partner = self.me ^ round;
            let (given, taken) = (blocks(given[partner]), blocks(taken[partner]));
            let mut block = std::mem::take(&mut self.block);
            block.clear();
            given.for_each(|range| block.extend_from_slice(cast_slice(&data[range])));
            self.block = match &self.pipes[partner] {
                None => {
                    let mut rest = &block[..];
                    taken.for_each(|range| rest.read_exact(cast_slice_mut(&mut into[range])).expect("equal sections"));
                    block
                }
                Some(pipe) => {
                    // Both partners give their blocks away before they read, so that neither waits for the other.
                    let put = pipe.start_put(block);
                    for range in taken {
                        (&*pipe).read_exact(cast_slice_mut(&mut into[range])).map_err(transom::Error::other)?;
                    }
                    put.wait()?
                }
            };
        }
        Ok(())
    }
}

/// Adjacent elements of a section, block after block.
fn blocks(section: Section) -> impl Iterator<Item = Range<usize>> {
    let (offset, count, block, stride) = match section {
        Section::Contiguous { offset, len } => (offset, 1, len, 0),
        Section::Strided { offset, count, block, stride } => (offset, count, block, stride),
        other => unreachable!("{other:?} is neither contiguous nor strided"),
    };
    (0..count).map(move |at| offset + at * stride..offset + at * stride + block)
}
