//! Puts and gets: through slots if they are small, else from and to the program's memory where it is.
//!
//! Memory that a program lends for a call is the adapter's until the call returns, which therefore waits until the requests are
//! complete; if they will not be, it ends the lane, and with its queue pair goes whatever the adapter might still have done.
//! Memory that is handed over stays with the lane until then, whoever drops or leaks what is under way.

use super::failure::Halt;
use super::far::Far;
use super::member::{Member, Way};
use super::operations::retry;
use super::striped::{Here, Striped};
use super::under_way::UnderWay;
use crate::lane::Signal;
use crate::memory::{Lent, Passing, Slot};
use crate::sys::{Access, Registered};
use crate::wr::{Failure, Piece, Place, Verb, Why};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::striping::Part;
use transom_windows::{BoxBytes, FabricError};

/// Reads through slots that are under way at once.
const AT_ONCE: usize = 8;

/// Bytes of one request from or to the program's memory.
const PIECE: usize = 1 << 20;

/// A read or write under way, and its buffer. Dropped, it leaves both to the adapter.
pub struct Moving(State);

enum State {
    /// Done, or copied.
    Done(BoxBytes),
    /// The adapter has the buffer.
    Direct(UnderWay),
    /// The adapter brings the bytes elsewhere.
    Copied(UnderWay, BoxBytes),
    /// Elsewhere, from where they go to memory that the program lends.
    Brought(UnderWay),
    /// The adapter has memory that the program lends, registered until this is over.
    Lent(Borrowed<Arc<Member>>, Arc<Registered>),
}

/// Requests under way on memory that a program lends: when this is dropped, the adapter is done with it.
struct Borrowed<M: Deref<Target = Member>> {
    member: M,
    way: Way,
    /// The number of the last; 0 if there is none.
    number: u64,
    /// Those of a divided operation.
    striped: Option<Arc<Striped>>,
}

impl<M: Deref<Target = Member>> Borrowed<M> {
    fn is_done(&self) -> Result<bool, FabricError> {
        if let Some(striped) = &self.striped {
            return striped.is_done(&self.member);
        }
        self.member.progress();
        if self.number == 0 {
            return Ok(true);
        }
        let done = self.member.lane(self.way).is_complete(self.number);
        done.map_err(|failure| self.member.why(self.way, Halt::Failed(failure)))
    }

    fn finish(mut self) -> Result<(), FabricError> {
        if let Some(striped) = self.striped.take() {
            // Where that fails the adapters do nothing of it any more.
            return striped.finish(&self.member);
        }
        let done = self.member.complete(self.way, self.number);
        if done.is_ok() {
            self.number = 0;
        }
        done
    }
}

impl<M: Deref<Target = Member>> Drop for Borrowed<M> {
    fn drop(&mut self) {
        if let Some(striped) = &self.striped {
            let _ = striped.finish(&self.member);
        }
        if self.number > 0 && self.member.complete(self.way, self.number).is_err() {
            // It will never be told complete, and what of it is still to come must not be.
            self.member.lane(self.way).give_up(Failure::known(Why::Gone));
        }
        // None if the peer could not be reached.
        let lane = self.member.core_of(self.way).endpoints.lane(self.way.peer);
        if let Some(lane) = lane.filter(|lane| lane.is_elsewhere()) {
            // What another rail has registered of it is registered no longer.
            lane.reclaim();
        }
    }
}

impl Member {
    /// Writes bytes, which may be used again when this returns.
    #[inline]
    pub fn write(&self, to: Far<'_>, source: &[u8]) -> Result<(), FabricError> {
        // SAFETY: nobody changes the source during the call, in which the adapter is done with it.
        match unsafe { self.core().memory.lent(NonNull::from(source).cast(), source.len(), Access::Source) } {
            None => self.write_by_slots(to.way, to.place, source),
            // SAFETY: as above.
            Some(passing) => unsafe { self.borrow(Verb::Write, to, &passing, source.len()) },
        }
    }

    /// Reads bytes; they are there when this returns.
    #[inline]
    pub fn read(self: &Arc<Self>, from: Far<'_>, into: &mut [u8]) -> Result<(), FabricError> {
        let (start, len) = (NonNull::from(&mut *into).cast(), into.len());
        // SAFETY: the destination is this call's alone, in which the adapter is done with it.
        match unsafe { self.core().memory.lent(start, len, Access::Local) } {
            None => self.read_by_slots(from.way, from.place, into),
            // SAFETY: as above.
            Some(passing) => unsafe { self.borrow(Verb::Read, from, &passing, len) },
        }
    }

    /// # Safety
    /// The memory must be lent, and nobody use it, until this returns.
    unsafe fn borrow(&self, verb: Verb, at: Far<'_>, of: &Passing, len: usize) -> Result<(), FabricError> {
        // SAFETY: by the caller's word; what is under way is over before this returns, also if it fails.
        unsafe { self.post_borrowed(self, verb, at, of, len) }?.finish()
    }

    /// # Safety
    /// The memory must be lent, and nobody use it, until what is returned is dropped, and if this fails, until it returns.
    unsafe fn post_borrowed<M: Deref<Target = Member>>(
        &self,
        member: M,
        verb: Verb,
        at: Far<'_>,
        of: &Passing,
        len: usize,
    ) -> Result<Borrowed<M>, FabricError> {
        let offset = (of.address - of.registered.address) as usize;
        let piece = |from, bytes| of.registered.piece(offset + from, bytes);
        let Far { way, place, .. } = at;
        // SAFETY: by the caller's word.
        if let Some(striped) = unsafe { self.start_striped(at, verb, len, piece) }? {
            return Ok(Borrowed { member, way, number: 0, striped: Some(striped) });
        }
        let mut under_way = Borrowed { member, way, number: 0, striped: None };
        // SAFETY: by the caller's word; if a later piece fails, the earlier ones are over when `under_way` is dropped.
        unsafe { self.post_pieces(way, verb, place, len, piece, &mut under_way.number) }?;
        Ok(under_way)
    }

    /// Starts a write of bytes that the program lends; none if the adapter needs them no more.
    ///
    /// # Safety
    /// They must be lent, and nobody change them, until what is returned is dropped.
    pub unsafe fn start_lent_write(
        self: &Arc<Self>,
        to: Far<'_>,
        source: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        // SAFETY: by the caller's word.
        match unsafe { self.core().memory.lent(source.cast(), source.len(), Access::Source) } {
            // SAFETY: as above.
            None => self.write_by_slots(to.way, to.place, unsafe { source.as_ref() }).map(|()| None),
            // SAFETY: as above.
            Some(passing) => unsafe { self.start_lent(Verb::Write, to, passing, source.len()) },
        }
    }

    /// Starts a read to bytes that the program lends; none if they have come.
    ///
    /// # Safety
    /// They must be lent, and nobody use them, until what is returned is dropped.
    pub unsafe fn start_lent_read(
        self: &Arc<Self>,
        from: Far<'_>,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        let (memory, len) = (&self.core().memory, into.len());
        // SAFETY: by the caller's word.
        if let Some(passing) = unsafe { memory.lent(into.cast(), len, Access::Local) } {
            // SAFETY: as above.
            return unsafe { self.start_lent(Verb::Read, from, passing, len) };
        }
        match memory.passage(len) {
            Ok(Some(own)) => Ok(Some(Moving(State::Brought(self.start(Verb::Read, from, own, len)?)))),
            // SAFETY: lent by the caller, for nobody else to use.
            Ok(None) => self.read_by_slots(from.way, from.place, unsafe { into.as_mut() }).map(|()| None),
            Err(error) => Err(self.why(from.way, Halt::Memory(error))),
        }
    }

    /// # Safety
    /// The memory must be lent, and nobody use it, until what is returned is dropped, and if this fails, until it returns.
    unsafe fn start_lent(
        self: &Arc<Self>,
        verb: Verb,
        at: Far<'_>,
        of: Passing,
        len: usize,
    ) -> Result<Option<Moving>, FabricError> {
        // SAFETY: by the caller's word.
        let borrowed = unsafe { self.post_borrowed(self.clone(), verb, at, &of, len) }?;
        Ok(Some(Moving(State::Lent(borrowed, of.registered))))
    }

    /// Waits until a read that [`start_lent_read`](Self::start_lent_read) started is done, and what it read is there.
    ///
    /// # Safety
    /// They must be the bytes that it was started with.
    pub unsafe fn finish_get(&self, moving: Moving, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        match moving.0 {
            // SAFETY: lent by the caller, for nobody else to use.
            State::Brought(reading) => self.bring(reading, unsafe { into.as_mut() }),
            _ => self.finish_moving(moving).map(drop),
        }
    }

    /// Starts a write of bytes that are handed over.
    pub fn start_write(self: &Arc<Self>, to: Far<'_>, source: BoxBytes) -> Result<Moving, FabricError> {
        let len = source.len();
        match self.core().memory.source(source) {
            Ok(lent) => Ok(Moving(State::Direct(self.start(Verb::Write, to, lent, len)?))),
            Err(source) => {
                self.write_by_slots(to.way, to.place, &source)?;
                Ok(Moving(State::Done(source)))
            }
        }
    }

    /// Starts a read to bytes that are handed over.
    pub fn start_read(self: &Arc<Self>, from: Far<'_>, into: BoxBytes) -> Result<Moving, FabricError> {
        let len = into.len();
        match self.core().memory.destination(into) {
            Ok((lent, into)) => {
                let reading = self.start(Verb::Read, from, lent, len)?;
                Ok(Moving(match into {
                    Some(into) => State::Copied(reading, into),
                    None => State::Direct(reading),
                }))
            }
            Err((Some(error), _)) => Err(self.why(from.way, Halt::Memory(error))),
            Err((None, mut into)) => {
                self.read_by_slots(from.way, from.place, &mut into)?;
                Ok(Moving(State::Done(into)))
            }
        }
    }

    /// Starts what needs memory of this rank, piece by piece.
    fn start(self: &Arc<Self>, verb: Verb, at: Far<'_>, memory: Lent, len: usize) -> Result<UnderWay, FabricError> {
        let Far { way, place, .. } = at;
        let mut under_way = UnderWay::new(self, way, memory);
        let UnderWay { memory: Some(memory), number, striped, .. } = &mut under_way else { unreachable!("just given") };
        let piece = |from, bytes| memory.piece(from, bytes);
        if matches!(memory, Lent::Pinned(_)) {
            // SAFETY: as below; it stays where it is.
            *striped = unsafe { self.start_striped(at, verb, len, piece) }?;
            if striped.is_some() {
                return Ok(under_way);
            }
        }
        // SAFETY: what is under way has the memory, and leaves it to the lane if it is dropped sooner.
        unsafe { self.post_pieces(way, verb, place, len, piece, number) }?;
        Ok(under_way)
    }

    /// Divides an operation of `len` bytes among several rails and starts it, if it is to be.
    ///
    /// # Safety
    /// The memory must stay registered until it has ended, or was given up.
    unsafe fn start_striped(
        &self,
        at: Far<'_>,
        verb: Verb,
        len: usize,
        piece: impl Fn(usize, usize) -> Piece,
    ) -> Result<Option<Arc<Striped>>, FabricError> {
        let Some(parts) = self.divide(at, len) else { return Ok(None) };
        let access = if verb == Verb::Read { Access::Local } else { Access::Source };
        let here = |part: &Part| {
            let first = piece(part.at as usize, 0);
            let memory = &self.service.core_of(part.rail).memory;
            // SAFETY: by the caller's word.
            let by =
                |rail: usize| (rail > 0).then(|| unsafe { memory.part(first.address, part.length as usize, access) });
            Here { registered: by(part.rail).flatten(), first }
        };
        let striped = Striped::new(at, verb, &parts, here);
        striped.start(self)?;
        Ok(Some(striped))
    }

    /// Posts requests for `len` bytes. `posted` is the number of the last, also if a later one fails.
    ///
    /// # Safety
    /// The memory must stay registered until that request is complete or the lane has ended.
    unsafe fn post_pieces(
        &self,
        way: Way,
        verb: Verb,
        at: Place,
        len: usize,
        piece: impl Fn(usize, usize) -> Piece,
        posted: &mut u64,
    ) -> Result<(), FabricError> {
        for from in (0..len).step_by(PIECE) {
            let at = Place { address: at.address + from as u64, key: at.key };
            let piece = piece(from, (len - from).min(PIECE));
            // SAFETY: by the caller's word.
            *posted = unsafe { self.post_for(way, verb == Verb::Write, verb, at, piece) }?;
        }
        Ok(())
    }

    /// A slot to put bytes in; none if there is none now.
    fn chunk(&self, way: Way) -> Result<Option<Slot>, Halt> {
        if !retry(self.lane(way).may_lend())?.unwrap_or(false) {
            return Ok(None);
        }
        let chunks = &self.core().memory.chunks;
        if let Some(slot) = chunks.take_free() {
            return Ok(Some(slot));
        }
        // Others may have what they are done with.
        self.core().endpoints.all().for_each(|(_, lane)| lane.reclaim());
        match chunks.take() {
            Ok(slot) => Ok(Some(slot)),
            // There will be one again when something is complete.
            Err(error) if !chunks.is_empty() => {
                tracing::debug!(%error, "no more memory for puts; waiting");
                Ok(None)
            }
            Err(error) => Err(Halt::Memory(error)),
        }
    }

    fn write_by_slots(&self, way: Way, to: Place, source: &[u8]) -> Result<(), FabricError> {
        let (mut to, memory) = (to, &self.core().memory);
        for bytes in source.chunks(memory.chunks.bytes()) {
            let mut filled = None;
            self.post(way, true, |lane| {
                if bytes.len() <= lane.inline() {
                    return retry(lane.post_inline(Verb::Write, to, bytes));
                }
                // Copied while nothing is locked.
                let slot = match filled.take() {
                    Some(filled) => filled,
                    None => {
                        let Some(slot) = self.chunk(way)? else { return Ok(None) };
                        slot.write(bytes);
                        memory.copied(bytes.len());
                        Lent::Slot(slot)
                    }
                };
                let piece = slot.piece(0, bytes.len());
                // SAFETY: of the slot, which the lane has until the request is complete.
                let posted = unsafe { lane.post(Verb::Write, to, piece, Signal::Always, Some(slot)) };
                retry(posted.map_err(|(stop, back)| {
                    filled = back;
                    stop
                }))
            })?;
            to.address += bytes.len() as u64;
        }
        Ok(())
    }

    /// Several pieces at once.
    fn read_by_slots(self: &Arc<Self>, way: Way, from: Place, into: &mut [u8]) -> Result<(), FabricError> {
        let chunks = &self.core().memory.chunks;
        let start = |from, len| {
            let slot = chunks.take().map_err(|error| self.why(way, Halt::Memory(error)))?;
            self.start(Verb::Read, Far::of(way, from), Lent::Slot(slot), len)
        };
        if into.len() <= chunks.bytes() {
            return self.bring(start(from, into.len())?, into);
        }
        let mut from = from;
        for window in into.chunks_mut(AT_ONCE * chunks.bytes()) {
            let mut under_way: [Option<UnderWay>; AT_ONCE] = [const { None }; AT_ONCE];
            for (piece, reading) in window.chunks(chunks.bytes()).zip(&mut under_way) {
                *reading = Some(start(from, piece.len())?);
                from.address += piece.len() as u64;
            }
            for (piece, reading) in window.chunks_mut(chunks.bytes()).zip(under_way) {
                reading.map_or(Ok(()), |reading| self.bring(reading, piece))?;
            }
        }
        Ok(())
    }

    /// Copies what was read, once it has come.
    fn bring(&self, reading: UnderWay, into: &mut [u8]) -> Result<(), FabricError> {
        let brought = reading.finish()?;
        brought.read(into);
        self.core().memory.copied(into.len());
        Ok(())
    }

    /// Whether what is under way is done.
    pub fn has_moved(&self, moving: &Moving) -> Result<bool, FabricError> {
        match &moving.0 {
            State::Done(_) => Ok(true),
            State::Direct(under_way) | State::Copied(under_way, _) | State::Brought(under_way) => under_way.is_done(),
            State::Lent(borrowed, _) => borrowed.is_done(),
        }
    }

    /// Waits until it is; the buffer.
    pub fn finish_moving(&self, moving: Moving) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            State::Done(bytes) => Ok(bytes),
            State::Direct(under_way) => match under_way.finish()? {
                Lent::Pinned(pinned) => Ok(pinned.into_bytes()),
                Lent::Slot(_) | Lent::Lease(_) => unreachable!("these are copied from"),
            },
            State::Copied(reading, mut into) => self.bring(reading, &mut into).map(|()| into),
            // Of what is lent nothing comes back.
            State::Brought(reading) => reading.finish().map(|_| nothing()),
            State::Lent(borrowed, _registered) => borrowed.finish().map(|()| nothing()),
        }
    }
}

fn nothing() -> BoxBytes {
    BoxBytes::from(Box::<[u8]>::default())
}
