//! The sender's half: unacknowledged packets are kept and resent.

use super::{FLYING, RoundTrip, Settings};
use crate::sequence::Beyond;
use crate::wire::RAILS;
use std::collections::VecDeque;

/// Least number of later transmissions received after which a missing one is lost.
const LATER: u64 = 3;
/// Largest value of that number, after any amount of reordering without a loss.
const LATEST: u64 = 32;

/// Consecutive losses after which a rail is no longer used,
const MISSED: u32 = 8;
/// except once in this multiple of the shortest timeout.
pub(super) const TRIED: u64 = 16;

/// Packets of type `P` to one peer.
#[derive(Debug, Clone)]
pub struct Outgoing<P> {
    /// All packets before this one were received.
    acked: u64,
    /// First packet that was never sent.
    unsent: u64,
    /// Packets from `acked` on; `None` where the packet was received out of order.
    kept: VecDeque<Option<UnackedPacket<P>>>,
    /// Number of packets sent and not acknowledged.
    flying: u64,
    /// Lost packets to resend; some may have been acknowledged since.
    lost: VecDeque<u64>,
    /// Transmissions so far, of all packets; the first is 1.
    sendings: u64,
    /// Newest transmission that was received.
    newest: u64,
    /// Number of later transmissions received after which one counts as lost.
    later: u64,
    /// Most packets in flight, as reported by the peer.
    permitted: u64,
    round: RoundTrip,
    /// Start of the resend timeout in ns, if a packet is in flight.
    since: Option<u64>,
    /// Consecutive timeouts.
    in_vain: u32,
    heard: u64,
    give_up: u64,
    resends: u64,
    /// For each rail: consecutive losses of the packets it took last, and the time of its last transmission.
    missed: [(u32, u64); RAILS],
    tried_after: u64,
}

#[derive(Debug, Clone)]
struct UnackedPacket<P> {
    packet: P,
    sent: Option<Sending>,
    lost: bool,
}

/// The last transmission of a packet.
#[derive(Debug, Clone, Copy)]
struct Sending {
    number: u64,
    when: u64,
    rail: usize,
    /// Rail of the packet's previous transmission.
    before: usize,
}

/// Acknowledgement of the packets that a peer has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Acknowledgement {
    /// All packets before this one were received.
    pub before: u64,
    /// Bit i: packet `before + 1 + i` was received.
    pub mask: u64,
    /// Newest transmission received.
    pub newest: u64,
    /// Most packets that may be in flight from now on. Not a promise of room: packets that found none are
    /// resent.
    pub permitted: u16,
}

/// State of the resend timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// The timeout is not over.
    No,
    /// The oldest packet must be resent.
    Again,
    /// No datagram has arrived for so long that the peer is unreachable.
    Unreachable,
}

impl<P> Outgoing<P> {
    /// State before the first packet.
    pub fn new(settings: &Settings) -> Outgoing<P> {
        Outgoing {
            acked: 0,
            unsent: 0,
            kept: VecDeque::new(),
            flying: 0,
            lost: VecDeque::new(),
            sendings: 0,
            newest: 0,
            later: LATER,
            permitted: FLYING,
            round: RoundTrip::new(settings.floor, settings.ceiling),
            since: None,
            in_vain: 0,
            heard: 0,
            give_up: settings.give_up,
            resends: 0,
            missed: [(0, 0); RAILS],
            tried_after: TRIED * settings.floor,
        }
    }

    /// Queues a packet, which is kept until it is acknowledged.
    pub fn push(&mut self, packet: P) {
        self.kept.push_back(Some(UnackedPacket { packet, sent: None, lost: false }));
    }

    /// Number of packets kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The packet to send now, if there is one: its number, the number of the transmission, and the packet.
    pub fn next(&self) -> Option<(u64, u64, &P)> {
        let lost = self.lost.iter().copied().find(|lost| self.at(*lost).is_some_and(|kept| kept.lost));
        let fresh = self.unsent < self.end() && self.unsent - self.acked < FLYING && self.flying < self.permitted;
        let number = lost.or(fresh.then_some(self.unsent))?;
        let kept = self.at(number).expect("lost and unsent packets are kept");
        Some((number, self.sendings + 1, &kept.packet))
    }

    /// Rail of the last transmission of a packet; `None` before its first.
    pub fn last_rail(&self, number: u64) -> Option<usize> {
        self.at(number)?.sent.map(|sent| sent.rail)
    }

    /// Records that no rail accepts the next packet. A rail whose sends never complete accepts none for good, so the time
    /// counts towards [`Expired::Unreachable`].
    pub fn refused(&mut self, now: u64) {
        if self.since.is_none() {
            (self.since, self.heard) = (Some(now), now);
        }
    }

    /// Records that this packet was sent on a rail.
    pub fn sent(&mut self, number: u64, now: u64, rail: usize) {
        self.sendings += 1;
        self.refused(now);
        if self.flying == 0 {
            self.since = Some(now);
        }
        let sendings = self.sendings;
        self.missed[rail].1 = now;
        let kept = self.at_mut(number).expect("`next` returned this packet");
        let before = kept.sent.map_or(rail, |sent| sent.rail);
        let sending = Sending { number: sendings, when: now, rail, before };
        (kept.sent, kept.lost) = (Some(sending), false);
        if number < self.unsent {
            // Also drop earlier entries: those packets were acknowledged since.
            while self.lost.pop_front().is_some_and(|lost| lost != number) {}
            self.resends += 1;
        } else {
            self.unsent += 1;
            self.flying += 1;
        }
    }

    /// Applies an acknowledgement from the peer. Acknowledged packets are moved into `freed`.
    ///
    /// # Errors
    /// [`Beyond`] if it covers packets that were never sent; nothing is changed then.
    pub fn acknowledged(&mut self, told: Acknowledgement, now: u64, freed: &mut impl Extend<P>) -> Result<(), Beyond> {
        let last = told.before.checked_add(64 - u64::from(told.mask.leading_zeros())).ok_or(Beyond)?;
        let beyond = told.mask != 0 && last >= self.unsent;
        if told.before > self.unsent || beyond || told.newest > self.sendings {
            return Err(Beyond);
        }
        self.heard = now;
        let before = self.flying;
        for number in self.acked..told.before {
            freed.extend(self.came(number, told.newest, now));
        }
        for bit in (0..64).filter(|bit| told.mask >> bit & 1 == 1) {
            freed.extend(self.came(told.before + 1 + bit, told.newest, now));
        }
        while self.acked < self.unsent && self.kept.front().is_some_and(Option::is_none) {
            self.kept.pop_front();
            self.acked += 1;
        }
        if told.newest >= self.newest {
            self.newest = told.newest;
            self.permitted = u64::from(told.permitted).clamp(1, FLYING);
        }
        self.find_lost();
        if self.flying < before {
            (self.since, self.in_vain) = ((self.flying > 0).then_some(now), 0);
        }
        Ok(())
    }

    /// Records the arrival of a packet, by whichever transmission.
    fn came(&mut self, number: u64, newest: u64, now: u64) -> Option<P> {
        let at = number.checked_sub(self.acked)? as usize;
        let kept = self.kept.get_mut(at)?.take()?;
        self.flying -= 1;
        let Sending { number: sending, when, rail, before } = kept.sent?;
        self.missed[if sending <= newest { rail } else { before }].0 = 0;
        if sending == newest {
            self.round.took(now.saturating_sub(when));
        } else if sending > newest {
            // The packet was resent, but an earlier transmission arrived: it was late, not lost.
            self.later = (2 * self.later).min(LATEST);
        }
        Some(kept.packet)
    }

    fn find_lost(&mut self) {
        for (number, kept) in (self.acked..self.unsent).zip(&mut self.kept) {
            if let Some(kept) = kept
                && let Some(sending) = kept.sent
                && !kept.lost
                && sending.number + self.later <= self.newest
            {
                kept.lost = true;
                self.missed[sending.rail].0 += 1;
                self.lost.push_back(number);
            }
        }
    }

    /// Time at which [`expire`](Self::expire) must be called; 0 if a packet can be sent now.
    pub fn due(&self) -> Option<u64> {
        if self.next().is_some() {
            return Some(0);
        }
        Some(self.since? + self.round.patience(self.in_vain))
    }

    /// Time at which [`expire`](Self::expire) finds the peer unreachable, if nothing is heard from it until then.
    pub fn gives_up_at(&self) -> Option<u64> {
        self.since.map(|_| self.heard + self.give_up)
    }

    /// Checks the timeout. If it is over, the oldest packet is marked for resending: its acknowledgement will
    /// report which others are missing.
    pub fn expire(&mut self, now: u64) -> Expired {
        match self.since {
            Some(_) if now.saturating_sub(self.heard) >= self.give_up => Expired::Unreachable,
            Some(since) if now >= since + self.round.patience(self.in_vain) => {
                (self.since, self.in_vain) = (Some(now), self.in_vain + 1);
                let oldest = self.acked;
                let kept = self.at_mut(oldest).expect("the oldest packet is in flight");
                let rail = kept.sent.filter(|_| !std::mem::replace(&mut kept.lost, true)).map(|sending| sending.rail);
                if let Some(rail) = rail {
                    self.missed[rail].0 += 1;
                    self.lost.push_front(oldest);
                }
                Expired::Again
            }
            _ => Expired::No,
        }
    }

    /// Returns true if a rail may be used: it has few consecutive losses, or is due for another try.
    pub fn trusts(&self, rail: usize, now: u64) -> bool {
        let (missed, tried) = self.missed[rail];
        missed < MISSED || now >= tried + self.tried_after
    }

    /// Number of the next packet to send for the first time, and of the newest transmission. Acknowledgements
    /// from the peer are close to them.
    pub fn near(&self) -> [u64; 2] {
        [self.unsent, self.sendings]
    }

    /// Number of packets resent.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// Drops the kept packets and returns them.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        (self.flying, self.since) = (0, None);
        std::mem::take(&mut self.kept).into_iter().flatten().map(|kept| kept.packet)
    }

    /// Number of the next packet to be queued.
    fn end(&self) -> u64 {
        self.acked + self.kept.len() as u64
    }

    fn at(&self, number: u64) -> Option<&UnackedPacket<P>> {
        self.kept.get(number.checked_sub(self.acked)? as usize)?.as_ref()
    }

    fn at_mut(&mut self, number: u64) -> Option<&mut UnackedPacket<P>> {
        self.kept.get_mut(number.checked_sub(self.acked)? as usize)?.as_mut()
    }
}
