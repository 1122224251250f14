//! Zero-copy transfer by datagrams, from message memory to its final place.

use super::wire::VerbsWire;
use crate::wr::Piece;
use transom_channel::Wire;
use transom_channel::delivery::{PieceLoc, arrange};
use transom_channel::wire::{Busy, Event, Key, Lane, Part, Window, WireMemory};
use transom_shm_loopback::messages::Bytes;

/// Nanoseconds between two checks for silent queues.
const CHECKS: u64 = 100_000_000;

impl VerbsWire {
    pub(super) fn opened(&mut self, rail: usize, window: Window) -> Option<Key> {
        let pieces = (0..64).filter(|piece| window.wanted >> piece & 1 == 1);
        let end = window.at + (64 - window.wanted.leading_zeros() as usize) * window.piece;
        let (bytes, writable, registered) = self.known(rail, window.into)?;
        if !writable || end > bytes {
            return None;
        }
        let before = (window.into.address - registered.address) as usize + window.at;
        let pieces: Vec<Piece> =
            pieces.map(|piece| registered.piece(before + piece * window.piece, window.piece)).collect();
        let (registered, port) = (registered.clone(), self.port_of(rail));
        let (mailbox, adapter) = (self.mailboxes.get_mut(port)?, &self.service.core_of(port).rail);
        let (number, secret) = mailbox.windows.open(adapter, &pieces, &registered)?;
        self.open.insert((rail, number), window);
        Some(Key { address: number.into(), key: secret.into() })
    }

    pub(super) fn closed(&mut self, rail: usize, of: Key) -> u64 {
        let number = of.address as u32;
        let (window, port) = (self.open.remove(&(rail, number)), self.port_of(rail));
        let (Some(mailbox), Some(window)) = (self.mailboxes.get_mut(port), window) else { return 0 };
        // Pieces that did not arrive get 64, which is no piece's number.
        let came: Vec<u8> = mailbox.windows.close(number).into_iter().map(|piece| piece.unwrap_or(64)).collect();
        let (copies, there) = arrange(window.wanted, &came);
        if copies.is_empty() {
            return there;
        }
        let Some(memory) = self.known_memory(rail, window.into, 0, true) else { return 0 };
        let spare = Bytes::owned(vec![0_u8; window.piece].into_boxed_slice());
        let at = |place| match place {
            PieceLoc::Piece(piece) => (&memory, window.at + usize::from(piece) * window.piece),
            PieceLoc::Spare => (&spare, 0),
        };
        for ((from, from_at), (to, to_at)) in copies.into_iter().map(|(from, to)| (at(from), at(to))) {
            from.copy(from_at, window.piece, to, to_at);
        }
        there
    }

    pub(super) fn piece(
        &mut self,
        lane: Lane,
        from: Part<'_, Bytes>,
        to: Key,
        index: u8,
        token: Option<u64>,
    ) -> Result<(), Busy> {
        let place = u32::try_from(to.address).ok().zip(u32::try_from(to.key).ok());
        let (registered, begins) = self.moves_from(from.memory, lane.rail);
        let piece = registered.piece(begins + from.at, from.length);
        let port = self.port_of(lane.rail);
        let (Some(mailbox), Some(to)) = (self.mailboxes.get_mut(port), place) else {
            // The key designates no queue pair: the piece counts as sent, and the peer notices that it does not arrive.
            let now = self.now();
            self.events.extend(token.map(|token| Event::Done(token, now)));
            return Ok(());
        };
        let rail = &self.service.core_of(port).rail;
        // SAFETY: the engine ends a registration once its transfer was reported complete, or the peer was aborted.
        let sent = unsafe { mailbox.send_piece(rail, lane.peer, to, (index, piece), token) };
        sent.then_some(()).ok_or(Busy)
    }

    /// Reports sent pieces to the engine.
    pub(super) fn look_for_pieces(&mut self) -> bool {
        let (now, before) = (self.now(), self.events.len());
        let is_due = now >= self.next_check;
        if is_due {
            self.next_check = now + CHECKS;
        }
        for mailbox in &mut self.mailboxes {
            if is_due {
                mailbox.reset_silent_queues();
            }
            self.events.extend(mailbox.windows.gone().into_iter().map(|token| Event::Done(token, now)));
        }
        self.events.len() > before
    }
}
