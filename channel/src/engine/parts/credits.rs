//! Credits: what this rank and a peer may send each other, and the values reported to the peer.

use crate::credit::{Budget, CreditGrant, SHORT, SendCredits};
use crate::engine::request::cost;
use crate::packet::Values;
use crate::sequence::{Beyond, reached};
use crate::wire::Rank;
use std::collections::VecDeque;

/// Credits between this rank and one peer.
pub struct Credits {
    /// Credit of this rank at the peer.
    pub send: SendCredits,
    /// Credit of the peer at this rank.
    grant: CreditGrant,
    /// True once the peer has sent a message, and so has a share of the budget.
    joined: bool,
    /// Values that the next packet carries, and those that the last packet carried.
    values: Values,
    reported: Values,
    /// Packets and ring slots that the peer may use before it needs newer values.
    window: u32,
    slots: u32,
    /// Time since which a value is unreported, in ns.
    due_since: Option<u64>,
    /// Acknowledgement that the peer can read beside its ring. It lags by half a window at most, even if
    /// packets carried newer ones: a value older by half the number range would appear new.
    published: Option<u32>,
    /// True if the peer is in [`CreditPool::due`], or in [`CreditPool::polled`], respectively.
    listed: bool,
    polled: bool,
}

impl Credits {
    pub fn new(floor: u32, window: u32, slots: u32) -> Credits {
        let values = Values { granted: floor, ..Values::default() };
        let (send, grant) = (SendCredits::new(floor), CreditGrant::new(floor));
        let (joined, listed, polled) = (false, false, false);
        let (reported, due_since, published) = (values, None, None);
        Credits { send, grant, joined, values, reported, window, slots, due_since, published, listed, polled }
    }

    /// Returns true if a message of `length` bytes may be sent with its data: on credit, or on `overdraft` if the
    /// message is short.
    #[inline]
    pub fn can_send(&self, length: u64, overdraft: Option<u32>) -> bool {
        let cost = cost(length);
        let can_overdraw = |overdraft| self.send.can_overdraw(cost as u32, overdraft);
        self.send.affords(cost) || length <= SHORT.into() && overdraft.is_some_and(can_overdraw)
    }

    /// Returns true if an RTS may be sent: on credit or on `overdraft`.
    #[inline]
    pub fn can_announce(&self, overdraft: Option<u32>) -> bool {
        self.can_send(0, overdraft)
    }

    /// Spends the cost of a message. Returns true if the credit is overdrawn.
    #[inline(always)]
    pub fn spend(&mut self, cost: u32) -> bool {
        self.send.spend(cost);
        self.send.overdrawn() > 0
    }

    #[inline(always)]
    pub fn is_joined(&self) -> bool {
        self.joined
    }

    #[inline(always)]
    pub fn values(&self) -> Values {
        self.values
    }

    /// Returns true if all packets received were reported to the peer.
    #[inline(always)]
    pub fn is_ack_reported(&self) -> bool {
        self.values.ack == self.reported.ack
    }

    /// Records that all packets before `expected` were received.
    #[inline(always)]
    pub fn received(&mut self, expected: u32) {
        self.values.ack = expected;
    }

    /// Records the number of slots of the peer's ring that were freed.
    #[inline(always)]
    pub fn freed(&mut self, freed: u32) {
        self.values.freed = freed;
    }

    /// Resets the counters for a new ring of the peer, and returns its number.
    pub fn open_ring(&mut self) -> u16 {
        self.close_ring();
        self.values.ring = self.values.ring.wrapping_add(1);
        self.values.ring
    }

    /// Resets the state of the peer's ring, and of the values published beside it.
    pub fn close_ring(&mut self) {
        (self.values.freed, self.reported.freed) = (0, 0);
        self.published = None;
    }

    /// Words to publish beside the peer's ring.
    #[inline]
    pub fn words(&self) -> [u64; 2] {
        let Values { ack, granted, freed, .. } = self.values;
        [u64::from(granted) << 32 | u64::from(ack), freed.into()]
    }

    /// Records that these words were published; they count as reported if the peer reads them.
    #[inline]
    pub fn published(&mut self, reads: bool) {
        self.published = Some(self.values.ack);
        if reads {
            self.set_reported();
        }
    }

    /// Records that all values were sent to the peer.
    #[inline(always)]
    pub fn set_reported(&mut self) {
        self.reported = self.values;
        self.due_since = None;
    }

    /// Unreported part of each value.
    #[inline(always)]
    fn unreported(&self) -> [u32; 3] {
        let Values { ack, granted, freed, .. } = self.values;
        [
            ack.wrapping_sub(self.reported.ack),
            granted.wrapping_sub(self.reported.granted),
            freed.wrapping_sub(self.reported.freed),
        ]
    }

    #[inline]
    pub fn has_unreported(&self) -> bool {
        self.unreported() != [0; 3]
    }

    /// Returns true if half of a value that the peer needs is unreported, or the published acknowledgement
    /// lags as much.
    #[inline(always)]
    pub fn is_half_unreported(&self) -> bool {
        // Window, grant and slots are at least 2.
        let is_half = |unreported: u32, all: u32| unreported >= all / 2;
        let [ack, granted, freed] = self.unreported();
        let age = self.published.map_or(0, |published| self.values.ack.wrapping_sub(published));
        is_half(ack.max(age), self.window) || is_half(granted, self.grant.limit()) || is_half(freed, self.slots)
    }

    /// Returns true if the values must be reported now: half of one is unreported, or one was unreported for
    /// `delay` ns. Reads the clock only if a value is unreported.
    /// value is unreported.
    #[inline]
    pub fn is_due(&mut self, now: impl FnOnce() -> u64, delay: u64) -> bool {
        let is_late = self.has_unreported() && {
            let now = now();
            now.saturating_sub(*self.due_since.get_or_insert(now)) >= delay
        };
        is_late || self.is_half_unreported()
    }

    /// Time since which a value is unreported, in ns, as recorded by [`is_due`](Self::is_due).
    pub fn due_since(&self) -> Option<u64> {
        self.due_since
    }

    #[inline(always)]
    pub fn is_listed(&self) -> bool {
        self.listed
    }

    #[inline(always)]
    fn regrant(&mut self) {
        debug_assert!(reached(self.grant.value(), self.values.granted), "a credit is never taken back");
        self.values.granted = self.grant.value();
    }
}

/// Credits that this rank grants to all peers, and the peers with credits due or polled.
pub struct CreditPool {
    pub budget: Budget,
    /// Bytes of unreceived messages, with [`HEADER`](crate::credit::HEADER) for each.
    kept: u64,
    /// Peers with unreported values.
    due: VecDeque<Rank>,
    /// Peers with blocked sends whose values are polled beside the ring.
    polled: Vec<Rank>,
}

impl CreditPool {
    pub fn new(budget: Budget) -> CreditPool {
        CreditPool { budget, kept: 0, due: VecDeque::new(), polled: Vec::new() }
    }

    /// Counts a message that arrived, and gives a new peer its share of the budget. Fails if the sender had
    /// no credit.
    #[inline]
    pub fn admit(&mut self, peer: &mut Credits, cost: u64) -> Result<(), Beyond> {
        if !std::mem::replace(&mut peer.joined, true) {
            self.budget.join(&mut peer.grant);
            peer.regrant();
        }
        self.budget.arrived(&mut peer.grant, cost)?;
        self.kept += cost;
        Ok(())
    }

    /// Counts a message that arrived and is received at once: [`admit`](Self::admit) and
    /// [`release`](Self::release) in one.
    #[inline(always)]
    pub fn pass(&mut self, peer: &mut Credits, cost: u64) -> Result<(), Beyond> {
        self.budget.pass(&mut peer.grant, cost)?;
        peer.regrant();
        Ok(())
    }

    /// Ends the count of a message that was received, and returns its credit to the sender.
    #[inline]
    pub fn release(&mut self, peer: Option<(Rank, &mut Credits)>, cost: u64) {
        self.forget(cost);
        if let Some((rank, peer)) = peer {
            self.budget.release(&mut peer.grant, cost as u32);
            peer.regrant();
            self.list(rank, peer);
        }
    }

    /// Ends the count of a message that is lost.
    #[inline]
    pub fn forget(&mut self, cost: u64) {
        self.kept -= cost;
    }

    /// Returns the share of a lost peer to the budget.
    pub fn leave(&mut self, peer: &Credits) {
        self.budget.leave(&peer.grant, peer.joined);
    }

    /// Lists a peer with unreported values.
    #[inline]
    pub fn list(&mut self, rank: Rank, peer: &mut Credits) {
        if peer.has_unreported() && !std::mem::replace(&mut peer.listed, true) {
            self.due.push_back(rank);
        }
    }

    /// Takes the next listed peer. The caller must [relist](Self::relist) it.
    #[inline]
    pub fn next_due(&mut self) -> Option<Rank> {
        self.due.pop_front()
    }

    /// Keeps the taken peer in the list if it still has unreported values.
    #[inline]
    pub fn relist(&mut self, rank: Rank, peer: &mut Credits) {
        peer.listed = false;
        self.list(rank, peer);
    }

    /// Peers with unreported values.
    #[inline]
    pub fn due(&self) -> &VecDeque<Rank> {
        &self.due
    }

    /// Polls the values of a peer from now on.
    pub fn poll(&mut self, rank: Rank, peer: &mut Credits) {
        if !std::mem::replace(&mut peer.polled, true) {
            self.polled.push(rank);
        }
    }

    /// Peers whose values are polled.
    #[inline]
    pub fn polled(&self) -> &[Rank] {
        &self.polled
    }

    /// Stops polling the peer at an index of [`polled`](Self::polled). The last one takes its index.
    pub fn stop_polling(&mut self, at: usize, peer: Option<&mut Credits>) {
        self.polled.swap_remove(at);
        peer.into_iter().for_each(|peer| peer.polled = false);
    }

    /// Bytes of unreceived messages, with [`HEADER`](crate::credit::HEADER) for each.
    #[inline]
    pub fn kept(&self) -> u64 {
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::HEADER;

    const FLOOR: u32 = 256;

    fn pair() -> (CreditPool, Credits) {
        (CreditPool::new(Budget::new(FLOOR, 8192, 512)), Credits::new(FLOOR, 16, 8))
    }

    #[test]
    fn short_message_uses_overdraft_data_does_not() {
        let (_, mut peer) = pair();
        assert!(peer.can_send(192, None));
        assert!(!peer.spend(FLOOR));
        assert_eq!([0, 64, 65].map(|length| peer.can_send(length, Some(512))), [true, true, false]);
        assert!(!peer.can_announce(None));
        assert!(peer.can_announce(Some(512)));
        assert!(peer.spend(HEADER));
        assert_eq!(peer.send.overdrawn(), 64);
    }

    #[test]
    fn released_message_is_granted_again_and_listed() {
        let (mut pool, mut peer) = pair();
        assert_eq!(pool.admit(&mut peer, 100), Ok(()));
        // Its share: an eighth of 8192.
        assert_eq!((pool.kept(), peer.values().granted), (100, FLOOR + 1024));
        assert!(peer.is_joined() && pool.due().is_empty());
        pool.release(Some((3, &mut peer)), 100);
        assert_eq!((pool.kept(), peer.values().granted), (0, FLOOR + 1024 + 100));
        assert_eq!(pool.next_due(), Some(3));
        pool.relist(3, &mut peer);
        assert!(peer.is_listed());
        peer.set_reported();
        assert_eq!(pool.next_due(), Some(3));
        pool.relist(3, &mut peer);
        assert!(!peer.is_listed() && pool.due().is_empty());
    }

    #[test]
    fn message_beyond_credit_is_refused_and_not_counted() {
        let (mut pool, mut peer) = pair();
        assert_eq!(pool.admit(&mut peer, 4096), Err(Beyond));
        assert_eq!(pool.kept(), 0);
    }

    #[test]
    fn unreported_value_is_due_by_half_or_by_delay() {
        let (_, mut peer) = pair();
        assert!(!peer.is_due(|| unreachable!("the clock is read although no value is unreported"), 50));
        peer.received(1);
        assert!(!peer.is_due(|| 1000, 50));
        assert_eq!(peer.due_since(), Some(1000));
        assert!(!peer.is_due(|| 1049, 50));
        assert!(peer.is_due(|| 1050, 50));
        peer.set_reported();
        assert_eq!(peer.due_since(), None);
        peer.received(9);
        assert!(peer.is_half_unreported() && peer.is_due(|| 1051, 50));
    }

    #[test]
    fn published_ack_ages_though_packets_carry_newer() {
        let (_, mut peer) = pair();
        peer.published(false);
        (1..8).for_each(|ack| {
            peer.received(ack);
            peer.set_reported();
        });
        assert!(!peer.is_half_unreported());
        peer.received(8);
        peer.set_reported();
        assert!(peer.is_half_unreported());
        peer.published(true);
        assert!(!peer.is_half_unreported() && !peer.has_unreported());
        assert_eq!(peer.words(), [u64::from(FLOOR) << 32 | 8, 0]);
    }

    #[test]
    fn new_ring_takes_next_number_and_resets_freed() {
        let (_, mut peer) = pair();
        assert_eq!(peer.open_ring(), 1);
        peer.freed(3);
        assert!(peer.has_unreported() && !peer.is_half_unreported());
        assert_eq!((peer.open_ring(), peer.values().freed), (2, 0));
        assert!(!peer.has_unreported());
    }
}
