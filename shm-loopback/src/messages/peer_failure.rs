//! Detection of peers that have closed, left or died.

use super::inbox::Inbox;
use super::wire::ShmWire;
use crate::event_count;
use transom_channel::wire::{Event, Lane, Rank, Why};
use transom_windows::FabricError;

impl ShmWire {
    /// Announces to the peers that this rank receives no more messages.
    pub fn close(&mut self) {
        self.closing = true;
        self.own.close();
        for peer in 0..self.peers.len() {
            if let Some(inbox) = &self.peers[peer].inbox {
                event_count::notify(&inbox.view.header().event);
            }
        }
    }

    /// Detects lost peers. [`poll`](transom_channel::Wire::poll) reports each of them once all its earlier messages
    /// have been taken.
    pub fn look_for_the_gone(&mut self) {
        self.job.blocks.sweep();
        for (rank, died) in self.job.control.gone(self.me) {
            let why = if died { Why::Died } else { Why::Left };
            self.notice(rank, why);
            // Other peers may have reported the loss to the engine before the process had ended.
            if self.peers[rank].over {
                self.reclaim(rank);
            }
        }
        // A closing rank waits until its messages are received, or until their receivers close too.
        if !self.closing {
            return;
        }
        for rank in 0..self.peers.len() {
            if self.peers[rank].inbox.as_ref().is_some_and(Inbox::is_closed) {
                self.notice(rank, Why::Left);
            }
        }
    }

    /// Frees resources of a rank whose process has ended: cells that it had claimed but not filled, its unfinished read
    /// at the desk, and the mappings of its buffers.
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

    /// Records a lost peer. [`poll`](transom_channel::Wire::poll) reports it once all its earlier messages have been
    /// taken.
    pub fn notice(&mut self, rank: usize, why: Why) {
        let peer = &mut self.peers[rank];
        if rank != self.me && !peer.noticed && !peer.over {
            peer.noticed = true;
            self.gone.push((rank, why));
        }
    }

    /// Handles a failure to access the memory of a rank.
    pub(super) fn unreachable(&mut self, rank: usize, error: &FabricError) {
        // If the rank has left or died, or is about to, that is the cause to report.
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
            // Messages that the rank sent before are taken first.
            why => self.notice(rank, why),
        }
    }
}
