//! Moves between rails: by probes a rank finds that the rail in use does not reach a peer while another one does.

use super::core::Core;
use super::machine::ConnectionState;
use super::message::Message;
use super::pair::{LATELY, UNHEARD, choose};
use super::service::{Connection, Connector};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Successive checks in which the first rail must reach a peer before its lane returns to that rail.
const BACK: u32 = 10;

impl Connector {
    /// Returns whether the rail in use does not reach a peer while another rail does. Probes the peer if its lane has
    /// made no progress for `silent` checks.
    pub(super) fn is_unheard(&mut self, peer: Rank, silent: u32) -> bool {
        if silent == 0 || !self.core.has_others() || peer == self.core.me {
            return false;
        }
        self.probe_by_all(peer);
        let asked = Duration::from_secs(1) * silent / self.looks;
        let times =
            self.connections.get(&peer).map_or(1, |connection| connection.timeout_backoff.times(Instant::now()));
        asked > UNHEARD * times && self.is_cut(peer, UNHEARD * times)
    }

    /// Probes a peer on all rails.
    fn probe_by_all(&mut self, peer: Rank) {
        self.say(peer, Message::Probe);
        self.core.others().for_each(|other| other.probe(peer));
    }

    /// Returns whether a peer answered lately on some rail, but not on the rail in use within `unheard`.
    fn is_cut(&self, peer: Rank, unheard: Duration) -> bool {
        let by = self.connections.get(&peer).map_or(0, |connection| connection.pair.by);
        let reached = |core: &Core| core.has_heard(peer, unheard);
        let here = if by == 0 { reached(&self.core) } else { self.core.instead(by).is_some_and(|of| reached(&of)) };
        let heard = |core: &Core| core.has_heard(peer, LATELY);
        !here && (heard(&self.core) || self.core.others().any(|other| heard(&other)))
    }

    /// For the first rail: moves connections that are not established to a rail that reaches the peer, and moves
    /// failover connections back.
    pub(super) fn look_for_other_rails(&mut self) {
        let of = |(peer, connection): (&Rank, &Connection)| {
            let failover = matches!(connection.machine.state(), ConnectionState::Ready { mine, .. } if mine.by > 0);
            (connection.machine.is_waiting() || failover).then_some((*peer, failover))
        };
        for (peer, failover) in self.connections.iter().filter_map(of).collect::<Vec<_>>() {
            self.probe_by_all(peer);
            let reached = self.core.has_heard(peer, UNHEARD);
            let cut = !failover && self.is_cut(peer, UNHEARD);
            let connection = self.connections.get_mut(&peer).expect("the peer was found above");
            connection.back = if failover && reached { connection.back + 1 } else { 0 };
            connection.unheard = if cut { connection.unheard + 1 } else { 0 };
            let late = Duration::from_secs(1) * connection.unheard / self.looks > UNHEARD;
            if connection.back > BACK * connection.timeout_backoff.times(Instant::now())
                || late && connection.pair.by != choose(&self.core, peer)
            {
                tracing::info!(rank = self.core.me, peer, failover, "moving a connection to another rail");
                (connection.back, connection.unheard) = (0, 0);
                self.drive(peer, true, |machine, effects| {
                    machine.lost(machine.generation(), effects);
                    machine.want(effects);
                });
            }
        }
    }
}
