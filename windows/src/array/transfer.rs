//! Moves patches between the caller's buffer and their owners' parts.
//!
//! Where the elements of a run are not side by side in the buffer, they go through a buffer of the library's: to and from
//! memory that this processor does not reach a run at a time, since each is one remote operation; otherwise in pieces that
//! stay in the cache, or strip by strip.

use super::combs::Comb;
use super::reach::sealed::Way;
use super::share::Share;
use crate::Error;
use bytemuck::Pod;
use std::ops::Range;

/// Bytes of the caller's buffer that are filled from all owners before the next are.
pub(super) const LAP: usize = 16 << 10;

/// The library's buffer, for one transfer.
pub(super) struct Transfer<T> {
    buffer: Vec<T>,
}

impl<T: Pod> Transfer<T> {
    pub fn new() -> Self {
        Transfer { buffer: Vec::new() }
    }

    /// Reads the elements of a share. They are counted unless they were before.
    #[inline]
    pub fn get<W: Way<Element = T>, const D: usize>(
        &mut self,
        share: &Share<D>,
        way: &W,
        into: &mut [T],
        count: bool,
    ) -> Result<(), Error> {
        if !way.is_shared() {
            return self.get_runs(share, way, into);
        }
        let mut end = None;
        share.try_combs(|comb| {
            if count {
                way.count_reads(comb.runs_after(end));
                end = Some(comb.end());
            }
            let strips = comb.strips_at_once(size_of::<T>());
            if strips == 1 {
                let mut places = comb.strips();
                return places.try_for_each(|at| way.copy_from(at.part, &mut into[at.buffer..][..comb.strip]));
            }
            comb.try_pieces(strips, |piece| {
                let copy = first_of(&mut self.buffer, piece.len());
                way.copy_from(piece.first.part, copy)?;
                piece.scatter(copy, into);
                Ok(())
            })
        })
    }

    /// Writes the elements of a share. They are counted unless they were before.
    #[inline]
    pub fn put<W: Way<Element = T>, const D: usize>(
        &mut self,
        share: &Share<D>,
        way: &W,
        source: &[T],
        count: bool,
    ) -> Result<(), Error> {
        if !way.is_shared() {
            return self.each_run(share, source, |offset, elements| {
                way.count_writes(1);
                way.copy_to(offset, elements)
            });
        }
        let mut end = None;
        share.try_combs(|comb| {
            if count {
                way.count_writes(comb.runs_after(end));
                end = Some(comb.end());
            }
            let strips = comb.strips_at_once(size_of::<T>());
            if strips == 1 {
                let mut places = comb.strips();
                return places.try_for_each(|at| way.copy_to(at.part, &source[at.buffer..][..comb.strip]));
            }
            comb.try_pieces(strips, |piece| {
                let copy = first_of(&mut self.buffer, piece.len());
                piece.gather(source, copy);
                way.copy_to(piece.first.part, copy)
            })
        })
    }

    /// Calls `each` with where every run of a share begins in the part, and its elements.
    pub fn each_run<const D: usize>(
        &mut self,
        share: &Share<D>,
        source: &[T],
        mut each: impl FnMut(usize, &[T]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        share.try_runs(|run, combs| {
            if let [Comb { first, strip, count: 1, .. }] = combs {
                return each(run.start, &source[first.buffer..][..*strip]);
            }
            let copy = first_of(&mut self.buffer, run.len());
            combs.iter().for_each(|comb| comb.gather(source, &mut copy[comb.first.part - run.start..]));
            each(run.start, copy)
        })
    }

    fn get_runs<W: Way<Element = T>, const D: usize>(
        &mut self,
        share: &Share<D>,
        way: &W,
        into: &mut [T],
    ) -> Result<(), Error> {
        share.try_runs(|run: Range<usize>, combs| {
            way.count_reads(1);
            if let [Comb { first, strip, count: 1, .. }] = combs {
                return way.copy_from(run.start, &mut into[first.buffer..][..*strip]);
            }
            let copy = first_of(&mut self.buffer, run.len());
            way.copy_from(run.start, copy)?;
            combs.iter().for_each(|comb| comb.scatter(&copy[comb.first.part - run.start..], into));
            Ok(())
        })
    }
}

/// The first elements of a buffer, which is made long enough.
fn first_of<T: Pod>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::zeroed());
    }
    &mut buffer[..len]
}
