//! Puts and gets. Small ones are copied through slots; large ones access the program's memory in place.
//!
//! Memory lent for a call belongs to the adapter until the call returns. The call therefore waits until its requests
//! are complete. If they never will be, it ends the lane, and destroying the queue pair ends all accesses. Owned memory
//! stays with the lane until then, even if the caller drops or leaks the operation.

use super::failure::Halt;
use super::far::Far;
use super::member::{Member, Way};
use super::operations::retry;
use super::striped::{Here, Striped};
use super::under_way::UnderWay;
use crate::lane::Signal;
use crate::memory::{Lent, Passing, Slot};
use crate::sys::{Access, Registered};
use crate::wr::{Failure, Piece, RemoteAddress, Verb, Why};
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::striping::Part;
use transom_windows::{BoxBytes, FabricError};

/// Most concurrent reads through slots.
const AT_ONCE: usize = 8;

/// Bytes per request on the program's memory.
const PIECE: usize = 1 << 20;

/// A read or write in flight, with its buffer. Dropping it leaves both to the adapter.
pub struct Transfer(TransferState);

enum TransferState {
    /// Complete, or copied at once.
    Done(BoxBytes),
    /// The adapter accesses the buffer itself.
    Direct(UnderWay),
    /// The adapter reads into library memory, to be copied to the buffer.
    Copied(UnderWay, BoxBytes),
    /// The adapter reads into library memory, to be copied to memory that the program lends.
    Brought(UnderWay),
    /// The adapter accesses memory that the program lends, registered for this operation.
    Lent(Borrowed<Arc<Member>>, Arc<Registered>),
}

/// Requests in flight on memory that a program lends. Dropping it waits until the adapter is done with the memory.
struct Borrowed<M: Deref<Target = Member>> {
    member: M,
    way: Way,
    /// Number of the last request; 0 if none was posted.
    number: u64,
    /// The divided operation, if it is one.
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
            // On failure the adapters no longer execute any of its requests.
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
            // The requests will never be reported complete, so ending the lane must prevent their execution.
            self.member.lane(self.way).give_up(Failure::known(Why::Gone));
        }
        // `None` if the peer could not be reached.
        let lane = self.member.core_of(self.way).endpoints.lane(self.way.peer);
        if let Some(lane) = lane.filter(|lane| lane.is_failover()) {
            // Releases the failover rail's registrations of the memory.
            lane.reclaim();
        }
    }
}

impl Member {
    /// Writes bytes; the source may be reused when this returns.
    #[inline]
    pub fn write(&self, to: Far<'_>, source: &[u8]) -> Result<(), FabricError> {
        // SAFETY: the source is unchanged during the call, within which the adapter is done with it.
        match unsafe { self.core().memory.lent(NonNull::from(source).cast(), source.len(), Access::Source) } {
            None => self.write_by_slots(to.way, to.place, source),
            // SAFETY: as above.
            Some(passing) => unsafe { self.borrow(Verb::Write, to, &passing, source.len()) },
        }
    }

    /// Reads bytes, which have arrived when this returns.
    #[inline]
    pub fn read(self: &Arc<Self>, from: Far<'_>, into: &mut [u8]) -> Result<(), FabricError> {
        let (start, len) = (NonNull::from(&mut *into).cast(), into.len());
        // SAFETY: the destination belongs to this call, within which the adapter is done with it.
        match unsafe { self.core().memory.lent(start, len, Access::Local) } {
            None => self.read_by_slots(from.way, from.place, into),
            // SAFETY: as above.
            Some(passing) => unsafe { self.borrow(Verb::Read, from, &passing, len) },
        }
    }

    /// # Safety
    /// The memory must be lent for exclusive use until this returns.
    unsafe fn borrow(&self, verb: Verb, at: Far<'_>, of: &Passing, len: usize) -> Result<(), FabricError> {
        // SAFETY: caller's contract; no request is in flight when this returns, even on failure.
        unsafe { self.post_borrowed(self, verb, at, of, len) }?.finish()
    }

    /// # Safety
    /// The memory must be lent for exclusive use until the result is dropped; on failure, until this returns.
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
        // SAFETY: caller's contract.
        if let Some(striped) = unsafe { self.start_striped(at, verb, len, piece) }? {
            return Ok(Borrowed { member, way, number: 0, striped: Some(striped) });
        }
        let mut under_way = Borrowed { member, way, number: 0, striped: None };
        // SAFETY: caller's contract; if a later piece fails, dropping `under_way` completes the earlier ones.
        unsafe { self.post_pieces(way, verb, place, len, piece, &mut under_way.number) }?;
        Ok(under_way)
    }

    /// Starts a write of lent bytes; `None` if the adapter is already done with them.
    ///
    /// # Safety
    /// The bytes must be lent, and must not change, until the result is dropped.
    pub unsafe fn start_lent_write(
        self: &Arc<Self>,
        to: Far<'_>,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        // SAFETY: caller's contract.
        match unsafe { self.core().memory.lent(source.cast(), source.len(), Access::Source) } {
            // SAFETY: as above.
            None => self.write_by_slots(to.way, to.place, unsafe { source.as_ref() }).map(|()| None),
            // SAFETY: as above.
            Some(passing) => unsafe { self.start_lent(Verb::Write, to, passing, source.len()) },
        }
    }

    /// Starts a read into lent bytes; `None` if they have already arrived.
    ///
    /// # Safety
    /// The bytes must be lent for exclusive use until the result is dropped.
    pub unsafe fn start_lent_read(
        self: &Arc<Self>,
        from: Far<'_>,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        let (memory, len) = (&self.core().memory, into.len());
        // SAFETY: caller's contract.
        if let Some(passing) = unsafe { memory.lent(into.cast(), len, Access::Local) } {
            // SAFETY: as above.
            return unsafe { self.start_lent(Verb::Read, from, passing, len) };
        }
        match memory.passage(len) {
            Ok(Some(own)) => Ok(Some(Transfer(TransferState::Brought(self.start(Verb::Read, from, own, len)?)))),
            // SAFETY: the caller lends the bytes for exclusive use.
            Ok(None) => self.read_by_slots(from.way, from.place, unsafe { into.as_mut() }).map(|()| None),
            Err(error) => Err(self.why(from.way, Halt::Memory(error))),
        }
    }

    /// # Safety
    /// The memory must be lent for exclusive use until the result is dropped; on failure, until this returns.
    unsafe fn start_lent(
        self: &Arc<Self>,
        verb: Verb,
        at: Far<'_>,
        of: Passing,
        len: usize,
    ) -> Result<Option<Transfer>, FabricError> {
        // SAFETY: caller's contract.
        let borrowed = unsafe { self.post_borrowed(self.clone(), verb, at, &of, len) }?;
        Ok(Some(Transfer(TransferState::Lent(borrowed, of.registered))))
    }

    /// Waits until a read started by [`start_lent_read`](Self::start_lent_read) is complete and its bytes are in place.
    ///
    /// # Safety
    /// `into` must be the bytes with which the read was started.
    pub unsafe fn finish_get(&self, moving: Transfer, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        match moving.0 {
            // SAFETY: the caller lends the bytes for exclusive use.
            TransferState::Brought(reading) => self.bring(reading, unsafe { into.as_mut() }),
            _ => self.finish_moving(moving).map(drop),
        }
    }

    /// Starts a write of owned bytes.
    pub fn start_write(self: &Arc<Self>, to: Far<'_>, source: BoxBytes) -> Result<Transfer, FabricError> {
        let len = source.len();
        match self.core().memory.source(source) {
            Ok(lent) => Ok(Transfer(TransferState::Direct(self.start(Verb::Write, to, lent, len)?))),
            Err(source) => {
                self.write_by_slots(to.way, to.place, &source)?;
                Ok(Transfer(TransferState::Done(source)))
            }
        }
    }

    /// Starts a read into owned bytes.
    pub fn start_read(self: &Arc<Self>, from: Far<'_>, into: BoxBytes) -> Result<Transfer, FabricError> {
        let len = into.len();
        match self.core().memory.destination(into) {
            Ok((lent, into)) => {
                let reading = self.start(Verb::Read, from, lent, len)?;
                Ok(Transfer(match into {
                    Some(into) => TransferState::Copied(reading, into),
                    None => TransferState::Direct(reading),
                }))
            }
            Err((Some(error), _)) => Err(self.why(from.way, Halt::Memory(error))),
            Err((None, mut into)) => {
                self.read_by_slots(from.way, from.place, &mut into)?;
                Ok(Transfer(TransferState::Done(into)))
            }
        }
    }

    /// Starts the requests of an operation on this rank's `memory`, piece by piece.
    fn start(self: &Arc<Self>, verb: Verb, at: Far<'_>, memory: Lent, len: usize) -> Result<UnderWay, FabricError> {
        let Far { way, place, .. } = at;
        let mut under_way = UnderWay::new(self, way, memory);
        let UnderWay { memory: Some(memory), number, striped, .. } = &mut under_way else { unreachable!("set by new") };
        let piece = |from, bytes| memory.piece(from, bytes);
        if matches!(memory, Lent::Pinned(_)) {
            // SAFETY: as below; pinned memory stays in place.
            *striped = unsafe { self.start_striped(at, verb, len, piece) }?;
            if striped.is_some() {
                return Ok(under_way);
            }
        }
        // SAFETY: `under_way` holds the memory, and leaves it to the lane if it is dropped early.
        unsafe { self.post_pieces(way, verb, place, len, piece, number) }?;
        Ok(under_way)
    }

    /// Divides an operation of `len` bytes among several rails and starts it; `None` if it must not be divided.
    ///
    /// # Safety
    /// The memory must stay registered until the operation has ended or was given up.
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
            // SAFETY: caller's contract.
            let by =
                |rail: usize| (rail > 0).then(|| unsafe { memory.part(first.address, part.length as usize, access) });
            Here { registered: by(part.rail).flatten(), first }
        };
        let striped = Striped::new(at, verb, &parts, here);
        striped.start(self)?;
        Ok(Some(striped))
    }

    /// Posts requests for `len` bytes. `posted` is set to the number of the last request, even if a later one fails.
    ///
    /// # Safety
    /// The memory must stay registered until that request is complete or the lane has ended.
    unsafe fn post_pieces(
        &self,
        way: Way,
        verb: Verb,
        at: RemoteAddress,
        len: usize,
        piece: impl Fn(usize, usize) -> Piece,
        posted: &mut u64,
    ) -> Result<(), FabricError> {
        for from in (0..len).step_by(PIECE) {
            let at = RemoteAddress { address: at.address + from as u64, key: at.key };
            let piece = piece(from, (len - from).min(PIECE));
            // SAFETY: caller's contract.
            *posted = unsafe { self.post_for(way, verb == Verb::Write, verb, at, piece) }?;
        }
        Ok(())
    }

    /// A slot for bytes to put; `None` if none is free now.
    fn chunk(&self, way: Way) -> Result<Option<Slot>, Halt> {
        if !retry(self.lane(way).may_lend())?.unwrap_or(false) {
            return Ok(None);
        }
        let chunks = &self.core().memory.chunks;
        if let Some(slot) = chunks.take_free() {
            return Ok(Some(slot));
        }
        // Other lanes may hold slots of completed requests.
        self.core().endpoints.all().for_each(|(_, lane)| lane.reclaim());
        match chunks.take() {
            Ok(slot) => Ok(Some(slot)),
            // A slot becomes free when a request completes.
            Err(error) if !chunks.is_empty() => {
                tracing::debug!(%error, "cannot register more slots for puts; waiting for a free one");
                Ok(None)
            }
            Err(error) => Err(Halt::Memory(error)),
        }
    }

    fn write_by_slots(&self, way: Way, to: RemoteAddress, source: &[u8]) -> Result<(), FabricError> {
        let (mut to, memory) = (to, &self.core().memory);
        for bytes in source.chunks(memory.chunks.bytes()) {
            let mut filled = None;
            self.post(way, true, |lane| {
                if bytes.len() <= lane.inline() {
                    return retry(lane.post_inline(Verb::Write, to, bytes));
                }
                // Copied outside the lane's lock.
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
                // SAFETY: the piece lies in the slot, which the lane holds until the request is complete.
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

    /// Reads several pieces concurrently.
    fn read_by_slots(self: &Arc<Self>, way: Way, from: RemoteAddress, into: &mut [u8]) -> Result<(), FabricError> {
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

    /// Waits for a read, and copies its bytes.
    fn bring(&self, reading: UnderWay, into: &mut [u8]) -> Result<(), FabricError> {
        let brought = reading.finish()?;
        brought.read(into);
        self.core().memory.copied(into.len());
        Ok(())
    }

    /// Returns whether the operation is complete.
    pub fn test(&self, moving: &Transfer) -> Result<bool, FabricError> {
        match &moving.0 {
            TransferState::Done(_) => Ok(true),
            TransferState::Direct(under_way)
            | TransferState::Copied(under_way, _)
            | TransferState::Brought(under_way) => under_way.is_done(),
            TransferState::Lent(borrowed, _) => borrowed.is_done(),
        }
    }

    /// Waits until the operation is complete; returns its buffer.
    pub fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            TransferState::Done(bytes) => Ok(bytes),
            TransferState::Direct(under_way) => match under_way.finish()? {
                Lent::Pinned(pinned) => Ok(pinned.into_bytes()),
                Lent::Slot(_) | Lent::Lease(_) => unreachable!("slots and leases are copied from"),
            },
            TransferState::Copied(reading, mut into) => self.bring(reading, &mut into).map(|()| into),
            // Lent memory is not returned.
            TransferState::Brought(reading) => reading.finish().map(|_| nothing()),
            TransferState::Lent(borrowed, _registered) => borrowed.finish().map(|()| nothing()),
        }
    }
}

fn nothing() -> BoxBytes {
    BoxBytes::from(Box::<[u8]>::default())
}
