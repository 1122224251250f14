//! Connections that are given up because they are idle, if a rank has more than its share of the adapter's queue pairs.
//!
//! The rank with too many offers its idle connections to their peers (`Spare`). A peer that does not use its end either
//! drains the connection, as the machine describes. Any other peer ignores the offer, which changes nothing. The next
//! operation of either rank connects anew.

use super::machine::ConnectionState;
use super::message::Message;
use super::service::Connector;
use crate::rail::LastWord;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Time without a request after which a connection is idle.
const IDLE: Duration = Duration::from_millis(300);
/// Time after which a connection is offered again, if it was not used since.
const OFFER_AGAIN: Duration = Duration::from_secs(1);
/// Most connections that are offered at one check.
const OFFERS: usize = 32;
/// Connections that are offered at a check although this rank has few, if an adapter has no more queue pairs.
const MAKE_ROOM: usize = 4;

/// Use of a lane by this rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    /// Number of requests at the last check, and the time of the first check that found this number.
    posted: u64,
    since: Option<Instant>,
    /// Time of the last offer to the peer.
    offered: Option<Instant>,
}

impl Usage {
    /// Records the number of requests posted so far.
    pub fn note(&mut self, posted: u64, now: Instant) {
        if self.since.is_none() || self.posted != posted {
            *self = Usage { posted, since: Some(now), offered: None };
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) >= IDLE)
    }

    /// Returns whether the connection is to be offered to the peer, which may have ignored an earlier offer.
    fn is_to_be_offered(&self, now: Instant) -> bool {
        let waits = self.offered.is_some_and(|offered| now.saturating_duration_since(offered) < OFFER_AGAIN);
        self.is_idle(now) && !waits
    }
}

impl Connector {
    /// Offers idle connections to their peers, as many as this rank has too many, or [`MAKE_ROOM`]: first those that were
    /// not offered before, and of these those that were idle longest.
    pub(super) fn give_up_idle(&mut self, makes_room: bool) {
        let core = self.core.clone();
        let others = || core.endpoints.all().filter(|(peer, lane)| *peer != core.me && !lane.is_broken());
        let excess = others().count().saturating_sub(core.rail.most_connections);
        let excess = excess.max(if makes_room { MAKE_ROOM } else { 0 });
        if excess == 0 || !self.can_drain() {
            return;
        }
        let now = Instant::now();
        let mut idle: Vec<_> = others()
            .filter_map(|(peer, lane)| {
                let usage = self.connections.get(&peer)?.usage;
                (usage.is_to_be_offered(now) && lane.is_spare()).then_some((usage.offered, usage.since, peer))
            })
            .collect();
        idle.sort_unstable();
        for (.., peer) in idle.into_iter().take(excess.min(OFFERS)) {
            let Some(connection) = self.connections.get_mut(&peer) else { continue };
            connection.usage.offered = Some(now);
            let generation = connection.machine.generation();
            if matches!(connection.machine.state(), ConnectionState::Ready { .. }) {
                self.say(peer, Message::Spare { generation });
            }
        }
    }

    /// Drains the connection that a peer offers to give up, if this rank does not use it either.
    pub(super) fn drain_if_idle(&mut self, peer: Rank, generation: u32) {
        let core = self.core.clone();
        let (Some(lane), Some(connection)) = (core.endpoints.lane(peer), self.connections.get_mut(&peer)) else {
            return;
        };
        let now = Instant::now();
        connection.usage.note(lane.posted(), now);
        let same = connection.machine.generation() == generation;
        if same && connection.usage.is_idle(now) && lane.is_spare() && self.can_drain() {
            tracing::debug!(rank = core.me, peer, generation, "giving up an idle connection");
            self.drive(peer, false, |machine, effects| machine.drain(effects));
        }
    }

    /// Returns whether queue pairs can be replaced. Both ranks must say so: an adapter that does not report its received
    /// position has one queue pair to each peer.
    fn can_drain(&self) -> bool {
        self.core.rail.last_word() != LastWord::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_idle_some_time_after_its_last_request() {
        let (begun, mut usage) = (Instant::now(), Usage::default());
        assert!(!usage.is_idle(begun + IDLE), "never looked at");
        for (after, posted, idle) in [(0, 5, false), (299, 5, false), (300, 5, true), (310, 6, false), (610, 6, true)] {
            let now = begun + Duration::from_millis(after);
            usage.note(posted, now);
            assert_eq!(usage.is_idle(now), idle, "after {after} ms");
        }
    }

    #[test]
    fn idle_connection_is_offered_again_after_a_second() {
        let (begun, mut usage) = (Instant::now(), Usage::default());
        for (after, posted, offered) in
            [(0, 5, false), (300, 5, true), (1299, 5, false), (1300, 5, true), (1400, 6, false), (1700, 6, true)]
        {
            let now = begun + Duration::from_millis(after);
            usage.note(posted, now);
            assert_eq!(usage.is_to_be_offered(now), offered, "after {after} ms");
            usage.offered = if offered { Some(now) } else { usage.offered };
        }
    }
}
