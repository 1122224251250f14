//! Posting of requests to a peer: copied, or zero-copy.

use super::moves::Move;
use super::wire::{Peer, VerbsWire};
use crate::connect::Link;
use crate::lane::{Signal, Stop};
use crate::memory::Lent;
use crate::wr::{RemoteAddress, Verb};
use std::time::{Duration, Instant};
use transom_channel::wire::{Busy, Data, Event, Key, Lane, Part, Rank, Why, WireMemory};
use transom_shm_loopback::messages::Bytes;

/// Target of a send: any receive buffer of the peer.
pub(super) const BUFFER: RemoteAddress = RemoteAddress { address: 0, key: 0 };

/// A lane that accepts no request for this long is broken off, if there are other rails.
const REFUSED: Duration = Duration::from_secs(1);

impl VerbsWire {
    /// Posts the remaining requests of a lane's transfers, and reports completed transfers.
    pub(super) fn moved(&mut self, lane: Lane) {
        let _ = self.post_moves(lane);
        self.tell_done(lane);
        if self.peers.get(&lane.peer).is_some_and(|peer| !peer.moves[lane.rail].is_empty()) {
            self.moving.push(lane);
        }
    }

    /// Reports completed transfers to the engine.
    pub(super) fn tell_done(&mut self, lane: Lane) {
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return };
        let moves = &mut peer.moves[lane.rail];
        let Some(ended) = self.service.core_of(lane.rail).endpoints.lane(lane.peer as usize) else { return };
        while let Some(token) = moves.done(ended.completed_of_messages()) {
            self.events.push_back(Event::Done(token, self.began.elapsed().as_nanos() as u64));
        }
    }

    /// Posts all requests of the transfers begun on a lane; `Busy` if some are left.
    pub(super) fn post_moves(&mut self, lane: Lane) -> Result<(), Busy> {
        let Some(peer) = self.peers.get_mut(&lane.peer) else { return Ok(()) };
        let moves = &mut peer.moves[lane.rail];
        if moves.is_empty() {
            return Ok(());
        }
        let to = self.service.core_of(lane.rail).endpoints.lane(lane.peer as usize).ok_or(Busy)?;
        // SAFETY: the engine ends a registration once its transfer was reported complete, or once the lane was aborted
        // and has therefore ended.
        let posted = unsafe { moves.post(to) };
        posted.map_err(|stop| self.stopped(lane, &stop))
    }

    fn stopped(&mut self, lane: Lane, stop: &Stop) -> Busy {
        match stop {
            Stop::Broken => self.restore(lane),
            Stop::System(error) => self.refused(lane, error),
            // `Full` ends by itself, and a failure or cut is reported elsewhere.
            Stop::Full | Stop::Failed(_) | Stop::Cut => {}
        }
        Busy
    }

    /// Handles a request that the adapter did not accept. If it accepts none for [`REFUSED`], other rails take over.
    fn refused(&mut self, by: Lane, error: &std::io::Error) {
        let fails_over = self.may_fail_over();
        let core = self.service.core_of(by.rail);
        let Some(lane) = core.endpoints.lane(by.peer as usize) else { return };
        let peer = self.peers.entry(by.peer).or_default();
        match peer.refusals[by.rail] {
            Some((since, posted)) if posted == lane.posted() => {
                let keeps = by.rail == 0 && !peer.pipes.is_empty();
                if fails_over && !keeps && since.elapsed() > REFUSED {
                    peer.refusals[by.rail] = None;
                    tracing::warn!(lane = ?by, %error, "the adapter refuses all requests of a connection");
                    lane.break_off(lane.why_broken());
                    core.want(by.peer as usize);
                }
            }
            _ => {
                tracing::warn!(lane = ?by, %error, "a message could not be posted now");
                peer.refusals[by.rail] = Some((Instant::now(), lane.posted()));
            }
        }
    }

    /// Requests the connection of a lane without a queue. A dormant lane does not fail by itself if that is refused.
    fn restore(&mut self, Lane { peer, rail }: Lane) {
        let (core, rank) = (self.service.core_of(rail), peer as usize);
        let dormant = core.endpoints.lane(rank).is_some_and(|lane| lane.is_dormant());
        if !dormant || self.may_fail_over() {
            core.want(rank);
        } else if let refused @ (Link::Refused { .. } | Link::Unreached) = core.wanted(rank) {
            self.not_connected(Lane { peer, rail }, refused);
        }
    }

    /// Posts a message that is copied, inline in the request or in a slot.
    pub(super) fn copied(
        &mut self,
        by: Lane,
        verb: Verb,
        to: RemoteAddress,
        head: &[u8],
        body: Data<'_, Bytes>,
        mark: Option<u64>,
    ) -> Result<(), Busy> {
        let mark = mark.map(u64::to_le_bytes);
        let mark = mark.as_ref().map_or(&[][..], |mark| mark);
        let bytes = head.len() + body.length() + mark.len();
        let write = |into: &mut [u8]| write(into, head, body, mark);
        self.connect_for(by)?;
        let core = self.service.core_of(by.rail);
        let lane = core.endpoints.lane(by.peer as usize).ok_or(Busy)?;
        let into_pipe = |peer: &Peer| peer.pipes.iter().any(|pipe| pipe.key == u64::from(to.key));
        let moves = verb == Verb::Send || !self.peers.get(&by.peer).is_some_and(into_pipe);
        let posted = if bytes <= lane.inline() {
            self.scratch.resize(bytes, 0);
            write(&mut self.scratch);
            if moves {
                lane.post_message_inline(verb, to, &self.scratch)
            } else {
                lane.post_inline(verb, to, &self.scratch)
            }
            .map(drop)
        } else {
            match lane.may_lend() {
                Ok(true) => {
                    // A single request of any length, so that it is posted as a whole or not at all.
                    let slots = core.memory.slots_for(bytes);
                    let slot = slots.take().map_err(|error| {
                        tracing::warn!(%error, "cannot allocate memory for messages");
                        Busy
                    })?;
                    slot.fill(bytes, write);
                    let piece = slot.piece(bytes);
                    let lent = Some(Lent::Slot(slot));
                    // SAFETY: memory of the slot, which the lane keeps until the request is complete or returned.
                    let posted = unsafe {
                        match moves {
                            true => lane.post_message(verb, to, piece, Signal::Seldom, lent),
                            false => lane.post(verb, to, piece, Signal::NowAndThen, lent),
                        }
                    };
                    posted.map(drop).map_err(|(stop, _)| stop)
                }
                Ok(false) => Err(Stop::Full),
                Err(stop) => Err(stop),
            }
        };
        posted.map_err(|stop| self.stopped(by, &stop))
    }

    /// Begins a zero-copy write from, or read into, the memory of a message.
    pub(super) fn begin(
        &mut self,
        lane: Lane,
        verb: Verb,
        memory: Part<'_, Bytes>,
        key: Key,
        at: usize,
        token: u64,
    ) -> Result<(), Busy> {
        let at = self.place(lane.peer, key, at)?;
        let (registered, begins) = self.moves_from(memory.memory, lane.rail);
        let offset = begins + memory.at;
        let piece = registered.piece(offset, 0);
        assert!(memory.length <= registered.bytes() - offset, "the piece is registered");
        let next = Move { token, verb, at, address: piece.address, key: piece.key, left: memory.length, last: 0 };
        self.connect_for(lane)?;
        self.peers.entry(lane.peer).or_default().moves[lane.rail].push(next);
        if !self.moving.contains(&lane) {
            self.moving.push(lane);
        }
        let _ = self.post_moves(lane);
        Ok(())
    }

    /// Establishes a connection if sends are datagrams, or use other rails, and another request needs a connection; `Busy`
    /// until it is up.
    pub(super) fn connect_for(&mut self, Lane { peer: rank, rail }: Lane) -> Result<(), Busy> {
        if self.service.core_of(rail).endpoints.lane(rank as usize).is_some() {
            return Ok(());
        }
        let has_pipe = rail == 0 && self.peers.get(&rank).is_some_and(|peer| !peer.pipes.is_empty());
        if (!self.mailboxes.is_empty() || has_pipe)
            && let Link::Refused { .. } | Link::Unreached = self.core().wanted(rank as usize)
        {
            tracing::warn!(rank, "no connection for rings and pipes");
            self.notice(rank, Why::Unreachable);
        }
        Err(Busy)
    }

    /// The target at a peer. A peer that sent an invalid key is reported as unreachable.
    pub(super) fn place(&mut self, rank: Rank, key: Key, at: usize) -> Result<RemoteAddress, Busy> {
        place(key, at).ok_or_else(|| {
            tracing::warn!(rank, ?key, "a key names no adapter");
            self.notice(rank, Why::Unreachable);
            Busy
        })
    }
}

/// Writes header, body and mark one after the other.
pub(super) fn write(into: &mut [u8], head: &[u8], body: Data<'_, Bytes>, mark: &[u8]) {
    let (first, rest) = into.split_at_mut(head.len());
    first.copy_from_slice(head);
    let (middle, last) = rest.split_at_mut(rest.len() - mark.len());
    match body {
        Data::None => {}
        Data::Of(part) => part.memory.read(part.at, middle),
        Data::Bytes(bytes) => middle.copy_from_slice(bytes),
    }
    last.copy_from_slice(mark);
}

/// The target that a peer's key designates; the peer's adapter checks access to it.
fn place(key: Key, at: usize) -> Option<RemoteAddress> {
    Some(RemoteAddress { address: key.address.checked_add(at as u64)?, key: u32::try_from(key.key).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_keys_give_no_place() {
        let far = |address, key, at| place(Key { address, key }, at).map(|place| (place.address, place.key));
        assert_eq!(far(4096, 7, 8), Some((4104, 7)));
        assert_eq!(far(u64::MAX - 8, u32::MAX.into(), 8), Some((u64::MAX, u32::MAX)));
        assert_eq!(far(u64::MAX - 8, 7, 9), None);
        assert_eq!(far(4096, 1 << 32, 0), None);
    }
}
