//! The sender's half: what is not acknowledged is kept, and sent again.

use super::{FLYING, RoundTrip, Settings};
use crate::sequence::Beyond;
use crate::wire::RAILS;
use std::collections::VecDeque;

/// So many later sendings have come, at least, and one that has not is lost.
const LATER: u64 = 3;
/// And so many at most, however much order was seen to be broken without a loss.
const LATEST: u64 = 32;

/// A rail that has lost so many in a row is not taken,
const MISSED: u32 = 8;
/// but once in so many of the shortest times to wait.
const TRIED: u64 = 16;

/// Packets of type `P` to one peer.
#[derive(Debug, Clone)]
pub struct Outgoing<P> {
    /// All before have come.
    acked: u64,
    /// The first that was never sent.
    unsent: u64,
    /// From `acked` on; `None` is one that has come before others.
    kept: VecDeque<Option<Kept<P>>>,
    /// Sent, and neither acknowledged nor known to be lost twice.
    flying: u64,
    /// Lost ones, to be sent again; some may have been acknowledged meanwhile.
    lost: VecDeque<u64>,
    /// Sendings so far, of all packets; the first is 1.
    sendings: u64,
    /// The newest that has come.
    newest: u64,
    /// So many later ones have come, and one is lost.
    later: u64,
    /// How many may fly, as the peer told.
    permitted: u64,
    round: RoundTrip,
    /// Since when the oldest is waited for, if any flies.
    since: Option<u64>,
    /// How often that was in vain.
    in_vain: u32,
    heard: u64,
    give_up: u64,
    resends: u64,
    /// Of each rail, how many in a row are lost that it took last, and when it took the last.
    missed: [(u32, u64); RAILS],
    tried_after: u64,
}

#[derive(Debug, Clone)]
struct Kept<P> {
    packet: P,
    sent: Option<Sending>,
    lost: bool,
}

/// The last sending of a packet.
#[derive(Debug, Clone, Copy)]
struct Sending {
    number: u64,
    when: u64,
    rail: usize,
    /// The rail of the one before it.
    before: usize,
}

/// What a peer tells of what has come to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Acknowledgement {
    /// All packets before this one.
    pub before: u64,
    /// Bit i: the packet `before + 1 + i`, too.
    pub mask: u64,
    /// The newest sending.
    pub newest: u64,
    /// How many may be under way from now on. No promise that there is room: what has come in vain is sent again.
    pub permitted: u16,
}

/// What has become of waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expired {
    /// It is not over.
    No,
    /// The oldest packet is to be sent again.
    Again,
    /// Nothing was heard for so long that the peer is not reached any more.
    Unreachable,
}

impl<P> Outgoing<P> {
    /// Nothing has been sent.
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

    /// Takes a packet, which is kept until it is acknowledged.
    pub fn push(&mut self, packet: P) {
        self.kept.push_back(Some(Kept { packet, sent: None, lost: false }));
    }

    /// How many packets are kept.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// The packet to be sent now, if there is one: its number, that of the sending, and itself.
    pub fn next(&self) -> Option<(u64, u64, &P)> {
        let lost = self.lost.iter().copied().find(|lost| self.at(*lost).is_some_and(|kept| kept.lost));
        let fresh = self.unsent < self.end() && self.unsent - self.acked < FLYING && self.flying < self.permitted;
        let number = lost.or(fresh.then_some(self.unsent))?;
        let kept = self.at(number).expect("what is lost or was not sent is kept");
        Some((number, self.sendings + 1, &kept.packet))
    }

    /// That packet was sent by a rail.
    pub fn sent(&mut self, number: u64, now: u64, rail: usize) {
        self.sendings += 1;
        if self.since.is_none() {
            (self.since, self.heard) = (Some(now), now);
        }
        let sendings = self.sendings;
        self.missed[rail].1 = now;
        let kept = self.at_mut(number).expect("it was next");
        let before = kept.sent.map_or(rail, |sent| sent.rail);
        let sending = Sending { number: sendings, when: now, rail, before };
        (kept.sent, kept.lost) = (Some(sending), false);
        if number < self.unsent {
            // With those before it that have come meanwhile.
            while self.lost.pop_front().is_some_and(|lost| lost != number) {}
            self.resends += 1;
        } else {
            self.unsent += 1;
            self.flying += 1;
        }
    }

    /// The peer was heard, and has told this. Packets that have come are put into `freed`.
    ///
    /// # Errors
    /// So much was not sent; then nothing has changed.
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

    /// A packet has come, whichever time it was sent.
    fn came(&mut self, number: u64, newest: u64, now: u64) -> Option<P> {
        let at = number.checked_sub(self.acked)? as usize;
        let kept = self.kept.get_mut(at)?.take()?;
        self.flying -= 1;
        let Sending { number: sending, when, rail, before } = kept.sent?;
        self.missed[if sending <= newest { rail } else { before }].0 = 0;
        if sending == newest {
            self.round.took(now.saturating_sub(when));
        } else if sending > newest {
            // It was sent again, and has come by an earlier sending: it was only late.
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

    /// When [`expire`](Self::expire) has something to say; 0 if a packet is to be sent now.
    pub fn due(&self) -> Option<u64> {
        if self.next().is_some() {
            return Some(0);
        }
        Some(self.since? + self.round.patience(self.in_vain))
    }

    /// Whether nothing was acknowledged in time. If so the oldest is to be sent again: what is told of that tells what else
    /// is missing.
    pub fn expire(&mut self, now: u64) -> Expired {
        match self.since {
            Some(_) if now.saturating_sub(self.heard) >= self.give_up => Expired::Unreachable,
            Some(since) if now >= since + self.round.patience(self.in_vain) => {
                (self.since, self.in_vain) = (Some(now), self.in_vain + 1);
                let oldest = self.acked;
                let kept = self.at_mut(oldest).expect("the oldest flies");
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

    /// Whether a rail may be taken: it has lost few in a row; or it is tried again, now and then.
    pub fn trusts(&self, rail: usize, now: u64) -> bool {
        let (missed, tried) = self.missed[rail];
        missed < MISSED || now >= tried + self.tried_after
    }

    /// The number of the next packet and of the newest sending: what the peer tells cannot be far from them.
    pub fn near(&self) -> [u64; 2] {
        [self.unsent, self.sendings]
    }

    /// How many packets were sent again.
    pub fn resends(&self) -> u64 {
        self.resends
    }

    /// Gives up what is kept.
    pub fn drain(&mut self) -> impl Iterator<Item = P> {
        (self.flying, self.since) = (0, None);
        std::mem::take(&mut self.kept).into_iter().flatten().map(|kept| kept.packet)
    }

    /// The number of the next packet.
    fn end(&self) -> u64 {
        self.acked + self.kept.len() as u64
    }

    fn at(&self, number: u64) -> Option<&Kept<P>> {
        self.kept.get(number.checked_sub(self.acked)? as usize)?.as_ref()
    }

    fn at_mut(&mut self, number: u64) -> Option<&mut Kept<P>> {
        self.kept.get_mut(number.checked_sub(self.acked)? as usize)?.as_mut()
    }
}
