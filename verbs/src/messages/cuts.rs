//! Rail failures with several rails: requests posted on a cut lane are returned to the messages, which use other rails.
//!
//! A lane of messages is cut when its queue pair is retired: because the queue pair broke, the connecting thread found
//! that the rail does not reach the peer, or the peer retired its end. Only that thread retires queue pairs, and it
//! reconnects meanwhile. A lane is up again once it is reconnected and its returned requests were taken. If a lane has
//! ended for good, the others continue, unless an adapter refused an access.

use super::peer_failure::CLOSED;
use super::wire::VerbsWire;
use crate::lane::{self, Returned};
use crate::memory::Lent;
use crate::wr::{Verb, Why as Failed};
use std::time::{Duration, Instant};
use transom_channel::wire::{Event, Lane, Left, Rank};
use transom_shm_loopback::messages::Bytes;

/// Bytes of the completion flag that follows a message in a ring.
const MARK: usize = 8;
/// A peer that no rail reaches for this long counts as unreachable.
const DARK: Duration = Duration::from_secs(20);

/// State of a lane as last reported to the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Passage {
    /// Not reported, or the engine has taken back its requests.
    #[default]
    Closed,
    Up,
    Cut,
}

impl Passage {
    pub fn passes(&self) -> bool {
        *self == Passage::Up
    }
}

impl VerbsWire {
    pub(super) fn may_fail_over(&self) -> bool {
        self.mailboxes.is_empty() && self.rails.len() > 1
    }

    /// Returns true if a connected lane may be reported up: no returned requests are left to take.
    pub(super) fn raise(&mut self, by: Lane) -> bool {
        let (core, fails_over) = (self.service.core_of(by.rail), self.may_fail_over());
        let peer = self.peers.entry(by.peer).or_default();
        let keeps = !peer.pipes.is_empty() && by.rail == 0;
        let passage = &mut peer.passages[by.rail];
        if fails_over && by.peer as usize != core.me {
            let Some(lane) = core.endpoints.lane(by.peer as usize).filter(|lane| lane.failure().is_none()) else {
                return false;
            };
            lane.return_to_messages(!keeps);
            lane.stay(keeps);
            match (lane.is_cut(), *passage) {
                (false, _) => {}
                // No message was posted since the previous cut.
                (true, Passage::Closed) => drop(lane.take_returned()),
                // The cut is reported first.
                (true, _) => return false,
            }
        }
        *passage = Passage::Up;
        true
    }

    /// Applies to later posts: while there is a pipe, requests stay on the first rail and continue on its next queue
    /// pair; otherwise messages by connections are returned when the lane is cut.
    pub(super) fn keep_or_not(&mut self, by: Lane) {
        let Some(peer) = self.peers.get(&by.peer) else { return };
        // Beside datagrams the engine has no passage by the connection of a pipe.
        let passes = !self.mailboxes.is_empty() || peer.passages[by.rail].passes();
        if passes
            && self.service.cores().count() > 1
            && by.peer as usize != self.service.core.me
            && let Some(lane) = self.service.core_of(by.rail).endpoints.lane(by.peer as usize)
        {
            let stays = !peer.pipes.is_empty();
            lane.stay(stays);
            if self.may_fail_over() {
                lane.return_to_messages(!stays);
            }
        }
    }

    /// Reports newly cut lanes to the engine; returns true if there were any.
    pub(super) fn look_for_cuts(&mut self) -> bool {
        if !self.may_fail_over() {
            return false;
        }
        let mut found = false;
        for rail in 0..self.rails.len() {
            let retired = self.service.core_of(rail).retired();
            if std::mem::replace(&mut self.retired[rail], retired) != retired {
                let peers: Vec<Rank> = self.peers.keys().copied().collect();
                peers.into_iter().for_each(|peer| found |= self.look_whether_cut(Lane { peer, rail }));
            }
        }
        found
    }

    /// Reports rails of datagrams whose port or device went down as cut, and those that are back as up, if there are
    /// several. Returns true if there were any.
    pub(super) fn look_for_ports(&mut self) -> bool {
        if self.mailboxes.len() < 2 {
            return false;
        }
        let (first, before) = (self.rails.len() - self.mailboxes.len(), self.events.len());
        for port in 0..self.mailboxes.len() {
            let health = &self.service.core_of(port).rail.health;
            let is_down = health.port_down() || health.broken().is_some();
            if std::mem::replace(&mut self.down[port], is_down) == is_down {
                continue;
            }
            tracing::info!(port, is_down, "the port of a rail of datagrams changed");
            let rail = first + port;
            let peers = self.peers.iter().filter(|(_, peer)| !peer.over && !peer.noticed);
            let lanes = peers.map(|(peer, _)| Lane { peer: *peer, rail });
            self.events.extend(lanes.map(if is_down { Event::Cut } else { Event::Up }));
        }
        self.events.len() > before
    }

    fn look_whether_cut(&mut self, by: Lane) -> bool {
        let Some(peer) = self.peers.get_mut(&by.peer).filter(|peer| !peer.over && !peer.noticed) else { return false };
        let lane = self.service.core_of(by.rail).endpoints.lane(by.peer as usize);
        let passage = &mut peer.passages[by.rail];
        let is_new = *passage == Passage::Up && lane.is_some_and(|lane| lane.is_cut());
        if is_new {
            tracing::info!(peer = by.peer, rail = by.rail, "a rail was cut; messages use the other rails");
            *passage = Passage::Cut;
            self.events.push_back(Event::Cut(by));
        }
        is_new
    }

    /// Checks the lanes to a peer; called ten times per second. Returns false if the peer is unreachable: an adapter
    /// refused an access, the lane of a pipe or all lanes failed, or no rail has passed for [`DARK`].
    pub(super) fn can_reach(&mut self, rank: Rank) -> bool {
        let service = self.service.clone();
        let (mut failed, mut refused) = (0, false);
        for (rail, core) in service.cores().enumerate() {
            let Some(lane) = core.endpoints.lane(rank as usize) else { continue };
            let Some(failure) = lane.failure() else { continue };
            failed += 1;
            let keeps = rail == 0 && self.peers.get(&rank).is_some_and(|peer| !peer.pipes.is_empty());
            refused |= keeps || matches!(failure.why, Failed::Refused | Failed::Adapter);
            lane.reclaim();
            self.look_whether_cut(Lane { peer: rank, rail });
        }
        let rails = self.rails.len();
        let Some(peer) = self.peers.get_mut(&rank) else { return true };
        let was_cut = peer.passages[..rails].contains(&Passage::Cut) || peer.dark.is_some();
        peer.dark = match peer.passages.iter().any(Passage::passes) {
            true => None,
            false if was_cut || failed > 0 => peer.dark.or(Some(Instant::now())),
            false => None,
        };
        let dark = peer.dark.is_some_and(|since| since.elapsed() > DARK);
        !(refused || dark || failed == rails)
    }

    /// Ends a lane and returns its posted requests that are not known to be complete.
    pub(super) fn taken_back(&mut self, by: Lane) -> Vec<Left<Bytes>> {
        let Lane { peer: rank, rail } = by;
        let service = self.service.clone();
        let core = service.core_of(rail);
        let lane = || core.endpoints.lane(rank as usize);
        if !lane().is_some_and(|lane| lane.is_cut()) {
            core.end(rank as usize);
        }
        self.tell_done(by);
        let returned = lane().and_then(|lane| lane.take_returned());
        let peer = self.peers.entry(rank).or_default();
        peer.passages[rail] = Passage::Closed;
        if !peer.passages.iter().any(Passage::passes) {
            peer.dark.get_or_insert_with(Instant::now);
        }
        let mut all: Vec<(u64, Left<Bytes>)> =
            peer.moves[rail].take().map(|(number, token)| (number, Left::Moved(token))).collect();
        self.moving.retain(|moving| *moving != by);
        self.wanted.retain(|wanted| *wanted != by);
        self.wanted.push(by);
        self.events.retain(|event| !matches!(event, Event::Up(of) | Event::Cut(of) if *of == by));
        for (number, verb, bytes) in returned.into_iter().flat_map(|Returned { requests, .. }| requests) {
            let bytes = said(bytes);
            let (memory, length) = (Bytes::owned(bytes.clone()), bytes.len());
            match verb {
                // The closing message is sent again, on another rail.
                Verb::Send if *bytes == CLOSED => self.peers.entry(rank).or_default().told = false,
                Verb::Send => all.push((number, Left::Send(memory, length))),
                _ => all.push((number, Left::Put(memory, length.saturating_sub(MARK)))),
            }
        }
        // Requests that were not posted follow all posted ones.
        all.sort_by_key(|(number, _)| *number);
        all.into_iter().map(|(_, left)| left).collect()
    }
}

fn said(bytes: lane::Bytes<Lent>) -> Box<[u8]> {
    match bytes {
        lane::Bytes::Inline(bytes) => bytes,
        lane::Bytes::Lent(lent, length) => {
            let mut bytes = vec![0; length].into_boxed_slice();
            lent.read(&mut bytes);
            bytes
        }
    }
}
