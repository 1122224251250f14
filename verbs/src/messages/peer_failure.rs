//! Detection of peers that have closed, left or died.

use super::posting::BUFFER;
use super::wire::VerbsWire;
use crate::receive::MOST;
use crate::wr::Verb;
use std::sync::Arc;
use transom_channel::Paths;
use transom_channel::wire::{Data, Lane, Rank, Why};
use transom_locks::Awaited;
use transom_network::NetworkWire;
use transom_shm_loopback::messages::{ProgressHook, Waiter};
use transom_windows::FabricError;

/// Message of a rank that receives no more messages; every packet is longer.
pub(super) const CLOSED: [u8; 1] = [0];
/// Consecutive empty polls before a lost peer is reported to the engine.
const LAST_LOOKS: u32 = 3;
/// Checks of a lane that has ended, ten per second, before its peer counts as unreachable although it lives.
const ALIVE: u32 = 5;
/// Checks after which a leaving rank with too many connections makes one more.
const ONE_MORE: u32 = 16;

/// A lost peer whose last messages may still have to be received.
pub(super) struct Gone {
    pub peer: Rank,
    pub why: Why,
    looks: u32,
    /// Arrivals, of any peer, that may still precede this peer's last message. Bounds the wait, because other peers may
    /// send without end.
    before: usize,
}

impl Gone {
    fn new(peer: Rank, why: Why, before: usize) -> Self {
        Gone { peer, why, looks: 0, before }
    }

    /// Records a poll that received `taken` messages and may have `found` other work.
    pub fn looked(&mut self, found: bool, taken: usize) {
        self.looks += u32::from(!found && taken == 0);
        self.before = self.before.saturating_sub(taken);
    }

    /// True if no message of the peer can be left.
    pub fn is_over(&self) -> bool {
        self.looks > LAST_LOOKS || self.before == 0
    }
}

impl NetworkWire for VerbsWire {
    fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.here.progress_in_waits(hook.clone());
        self.core().progress_in_waits(hook);
    }

    fn close(&mut self) {
        self.closing = true;
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            if !self.is_dormant(peer) {
                self.say_closed(peer);
            }
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
        let mut connections = self.connections_to_close();
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            self.look_after(rank, &mut connections);
        }
    }

    fn is_given_up(&self) -> bool {
        let me = self.core().me;
        matches!(self.exchange.check_peers(Awaited::Rank(me)), Err(FabricError::PeerDied { rank }) if rank == me)
    }
}

impl VerbsWire {
    /// Announces to `rank` that this rank receives no more messages. If the lane is busy, the announcement is repeated
    /// later.
    pub(super) fn say_closed(&mut self, rank: Rank) {
        if rank as usize != self.core().me {
            let told = match self.mailboxes.len() {
                // A datagram may be lost, so the announcement is repeated until the end, by each rail in turn.
                rails @ 1.. => {
                    let number = &mut self.peers.entry(rank).or_default().announcements;
                    let mailbox = &mut self.mailboxes[*number % rails];
                    *number += 1;
                    mailbox.send(rank, CLOSED.len(), |into| into.copy_from_slice(&CLOSED));
                    false
                }
                0 => {
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

    /// Returns whether the announcement to a peer needs a connection that was given up.
    fn is_dormant(&self, rank: Rank) -> bool {
        let lane = self.core().endpoints.lane(rank as usize);
        self.mailboxes.is_empty() && !self.may_fail_over() && lane.is_some_and(|lane| lane.is_dormant())
    }

    /// Number of idle peers that a closing rank connects to at this check, for its announcements. Such a peer may need
    /// the announcement to leave itself. The first check connects to none, since the rank may leave at once.
    fn connections_to_close(&mut self) -> usize {
        if !self.closing {
            return 0;
        }
        self.closing_checks += 1;
        let core = self.core();
        let now = core.endpoints.all().filter(|(_, lane)| lane.has_queue()).count();
        let most = core.rail.most_connections;
        match most.checked_sub(now) {
            _ if self.closing_checks == 1 => 0,
            // Peers that are closing connect to this rank, too.
            Some(left) => (left / 2).max(most / 8).max(1),
            None => usize::from(self.closing_checks.is_multiple_of(ONE_MORE)),
        }
    }

    /// Has a broken lane reconnected, and counts checks of a lane that has ended although its peer lives. If both ranks
    /// are closing, the peer counts as having left. `connections` is the number of idle peers that may be connected.
    fn look_after(&mut self, rank: Rank, connections: &mut usize) {
        let service = self.service.clone();
        let lanes = || service.cores().filter_map(|core| Some((core, core.endpoints.lane(rank as usize)?)));
        let Some(peer) = self.peers.get(&rank).filter(|peer| !peer.over && !peer.noticed) else { return };
        let reached = !self.mailboxes.is_empty() || lanes().next().is_some();
        let (closed, told) = (peer.closed, peer.told);
        let ended = match self.may_fail_over() {
            true => !self.can_reach(rank),
            // Beside datagrams alone, connections carry rings and pipes, which use the first rail.
            false if service.core.paths == Paths::Datagrams => {
                service.core.endpoints.lane(rank as usize).is_some_and(|lane| lane.failure().is_some())
            }
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
            let dormant = self.is_dormant(rank) && !told;
            if dormant && *connections > 0 {
                *connections -= 1;
                // A refused connection is requested again at the next check.
                self.core().want(rank as usize);
            } else if reached && !told && !dormant {
                self.say_closed(rank);
            }
            if closed && !dormant {
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
            let buffers: usize = self.mailboxes.iter().map(|mailbox| mailbox.buffers() as usize).sum();
            self.gone.push(Gone::new(rank, why, self.rails.len() * MOST + buffers));
        }
    }
}
