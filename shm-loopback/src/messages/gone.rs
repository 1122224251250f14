//! Who receives nothing any more, and who is gone.

use super::inbox::Inbox;
use super::wire::ShmWire;
use crate::event_count;
use transom_channel::wire::{Event, Lane, Rank, Why};
use transom_windows::FabricError;

impl ShmWire {
    /// Tells the peers that this rank receives nothing any more.
    pub fn close(&mut self) {
        self.closing = true;
        self.own.close();
        for peer in 0..self.peers.len() {
            if let Some(inbox) = &self.peers[peer].inbox {
                event_count::notify(&inbox.view.header().event);
            }
        }
    }

    /// Finds out who is gone; [`poll`](transom_channel::Wire::poll) tells of them, once all is taken that came of them.
    pub fn look_for_the_gone(&mut self) {
        self.job.blocks.sweep();
        for (rank, died) in self.job.control.gone(self.me) {
            let why = if died { Why::Died } else { Why::Left };
            self.notice(rank, why);
            // The engine may have been told of it by others, before its process had ended.
            if self.peers[rank].over {
                self.reclaim(rank);
            }
        }
        // Who closes waits until what it sent is received, or its receiver closes too.
        if !self.closing {
            return;
        }
        for rank in 0..self.peers.len() {
            if self.peers[rank].inbox.as_ref().is_some_and(Inbox::is_closed) {
                self.notice(rank, Why::Left);
            }
        }
    }

    /// Takes back cells that a rank has begun to fill, and what it was reading here, once nobody fills or reads them; and unmaps its
    /// buffers.
    pub(super) fn reclaim(&mut self, rank: usize) {
        if !self.peers[rank].reclaimed && self.job.control.ended(rank).is_err() {
            self.peers[rank].reclaimed = true;
            self.own.desk().forget(rank);
            self.job.blocks.forget(self.job.control.process(rank));
            for waiting in self.own.reclaim(rank, self.peers.len()) {
                self.ring_for(waiting);
            }
        }
    }

    /// A rank is gone; [`poll`](transom_channel::Wire::poll) tells of it, once all is taken that came of it.
    pub fn notice(&mut self, rank: usize, why: Why) {
        let peer = &mut self.peers[rank];
        if rank != self.me && !peer.noticed && !peer.over {
            peer.noticed = true;
            self.gone.push((rank, why));
        }
    }

    /// The memory of a rank cannot be reached.
    pub(super) fn unreachable(&mut self, rank: usize, error: &FabricError) {
        // If it is gone, or about to, that is why.
        let control = &self.job.control;
        let has_left = control.has_left_messages(rank);
        let why = match if has_left { control.ended(rank) } else { control.ends_soon(rank) } {
            Err(FabricError::PeerDied { .. }) => Why::Died,
            _ if control.failed() == Some(rank) => Why::Died,
            _ if has_left || control.has_left_messages(rank) => Why::Left,
            _ => {
                tracing::warn!(rank_of_host = rank, %error, "cannot reach the memory of a rank for messages");
                Why::Unreachable
            }
        };
        match why {
            Why::Unreachable => self.events.push_back(Event::Failed(Lane { peer: rank as Rank, rail: 0 }, why)),
            // What it had sent before is taken first.
            why => self.notice(rank, why),
        }
    }
}
