//! Who receives nothing any more, and who is gone.

use super::posting::BUFFER;
use super::wire::VerbsWire;
use crate::datagram::ROOM;
use crate::receive::MOST;
use crate::wr::Verb;
use std::sync::Arc;
use transom_channel::wire::{Data, Lane, Rank, Why};
use transom_locks::Awaited;
use transom_network::NetworkWire;
use transom_shm_loopback::messages::{Turn, Waiter};
use transom_windows::FabricError;

/// What a rank that receives nothing any more sends: no packet is as short.
pub(super) const CLOSED: [u8; 1] = [0];
/// Looks that find nothing more, before the engine is told of a peer that is gone.
const LAST_LOOKS: u32 = 3;
/// Looks at a lane that has ended, ten a second, before its peer counts as one that lives.
const ALIVE: u32 = 5;

/// A peer that is gone, of which something may still be to be taken.
pub(super) struct Gone {
    pub peer: Rank,
    pub why: Why,
    looks: u32,
    /// So much may have come before all of it is taken: of others too, who may send without end.
    before: usize,
}

impl Gone {
    fn new(peer: Rank, why: Why, rails: usize) -> Self {
        Gone { peer, why, looks: 0, before: rails * MOST + ROOM as usize }
    }

    /// A look has taken so much that had come, and found something else or not.
    pub fn looked(&mut self, found: bool, taken: usize) {
        self.looks += u32::from(!found && taken == 0);
        self.before = self.before.saturating_sub(taken);
    }

    /// Whether nothing more can come of it.
    pub fn is_over(&self) -> bool {
        self.looks > LAST_LOOKS || self.before == 0
    }
}

impl NetworkWire for VerbsWire {
    fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    fn turn_in_waits(&self, turn: Arc<dyn Turn>) {
        self.here.turn_in_waits(turn.clone());
        self.core().turn_in_waits(turn);
    }

    fn close(&mut self) {
        self.closing = true;
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.say_closed(peer);
        }
    }

    fn look_for_the_gone(&mut self) {
        let me = self.core().me;
        for rank in (0..self.exchange.size()).filter(|rank| *rank != me) {
            match self.exchange.check_peers(Awaited::Rank(rank)) {
                Err(FabricError::PeerDied { rank: died }) if died == rank => self.notice(rank as Rank, Why::Died),
                Err(FabricError::PeerLeft { rank: left }) if left == rank => self.notice(rank as Rank, Why::Left),
                Err(_) if self.exchange.has_left(rank) => self.notice(rank as Rank, Why::Left),
                _ => {}
            }
        }
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            self.look_after(rank);
        }
    }

    fn is_given_up(&self) -> bool {
        let me = self.core().me;
        matches!(self.exchange.check_peers(Awaited::Rank(me)), Err(FabricError::PeerDied { rank }) if rank == me)
    }
}

impl VerbsWire {
    /// Where there is no room now, it is told later.
    pub(super) fn say_closed(&mut self, rank: Rank) {
        if rank as usize != self.core().me {
            let told = match &mut self.mailbox {
                // It may be lost, so it is told until the end.
                Some(mailbox) => {
                    mailbox.send(rank, CLOSED.len(), |into| into.copy_from_slice(&CLOSED));
                    false
                }
                None => {
                    let passes = |rail: &usize| {
                        self.peers.get(&rank).is_some_and(|peer| !self.may_fail_over() || peer.passages[*rail].passes())
                    };
                    let lane = (0..self.rails.len()).find(passes).map(|rail| Lane { peer: rank, rail });
                    lane.is_some_and(|lane| self.copied(lane, Verb::Send, BUFFER, &CLOSED, Data::None, None).is_ok())
                }
            };
            self.peers.entry(rank).or_default().told = told;
        }
    }

    /// Has a lane made anew that broke, and takes note of one that ended though its peer lives; of a peer that closes as
    /// this rank does neither receives.
    fn look_after(&mut self, rank: Rank) {
        let service = self.service.clone();
        let lanes = || service.cores().filter_map(|core| Some((core, core.endpoints.lane(rank as usize)?)));
        let Some(peer) = self.peers.get(&rank).filter(|peer| !peer.over && !peer.noticed) else { return };
        let reached = self.mailbox.is_some() || lanes().next().is_some();
        let (closed, told) = (peer.closed, peer.told);
        let ended = match self.may_fail_over() {
            true => !self.can_reach(rank),
            false => lanes().any(|(_, lane)| lane.failure().is_some()),
        };
        if ended && let Some(peer) = self.peers.get_mut(&rank) {
            peer.ended += 1;
            if peer.ended > ALIVE {
                self.notice(rank, Why::Unreachable);
            }
        }
        for (core, _) in lanes().filter(|(_, lane)| lane.is_broken() && !lane.is_idle()) {
            core.want(rank as usize);
        }
        if self.closing {
            if reached && !told {
                self.say_closed(rank);
            }
            if closed {
                self.notice(rank, Why::Left);
            }
        }
    }

    pub(super) fn notice(&mut self, rank: Rank, why: Why) {
        let peer = self.peers.entry(rank).or_default();
        if rank as usize != self.service.core.me && !peer.noticed && !peer.over {
            peer.noticed = true;
            if why == Why::Died {
                self.service.cores().for_each(|core| core.died(rank as usize));
            }
            self.gone.push(Gone::new(rank, why, self.rails.len()));
        }
    }
}
