//! Credits as values that only grow: how many bytes of messages that nobody waits for a
//! rank lets its peers send.

use crate::sequence::{Beyond, reached};

/// What one message without a receive costs its receiver beside its data, in bytes: the cost of an RTS.
pub const HEADER: u32 = 64;

/// What is granted at a time to a peer that has messages before the one that a receive waits for, in bytes: each time takes a
/// packet there and one back. So few that the data of a longer message stays where it is.
const AT_A_TIME: u32 = 4 * HEADER;

/// Peers that the budget is divided among at least.
const FEWEST: u32 = 8;

/// What a sender has of its peer's grant.
#[derive(Debug, Clone)]
pub struct Purse {
    granted: u32,
    spent: u32,
}

impl Purse {
    /// Every peer may send `floor` bytes unasked.
    #[inline]
    pub fn new(floor: u32) -> Purse {
        Purse { granted: floor, spent: 0 }
    }

    /// What may be sent, in bytes.
    #[inline]
    pub fn room(&self) -> u32 {
        self.granted.wrapping_sub(self.spent)
    }

    /// Sends so much.
    #[inline]
    pub fn spend(&mut self, cost: u32) {
        debug_assert!(cost <= self.room());
        self.spent = self.spent.wrapping_add(cost);
    }

    /// What the peer grants now. Late values change nothing.
    #[inline]
    pub fn granted(&mut self, granted: u32) {
        if reached(granted, self.granted) {
            self.granted = granted;
        }
    }
}

/// What a receiver lets one peer send: `limit` bytes beyond those that were taken.
#[derive(Debug, Clone)]
pub struct Grant {
    limit: u32,
    spilled: u32,
    arrived: u32,
    released: u32,
}

impl Grant {
    /// As the peer's [`Purse`] begins.
    #[inline]
    pub fn new(floor: u32) -> Grant {
        Grant { limit: floor, spilled: 0, arrived: 0, released: 0 }
    }

    /// The value to tell.
    #[inline]
    pub fn value(&self) -> u32 {
        self.released.wrapping_add(self.limit)
    }

    /// What the peer may send at a time, in bytes.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// What is kept of the peer's, in bytes.
    #[inline]
    pub fn kept(&self) -> u32 {
        self.arrived.wrapping_sub(self.released)
    }

    /// What the peer may send now, in bytes.
    #[inline]
    pub fn room(&self) -> u32 {
        self.limit - self.kept()
    }

    /// A message of this cost came; `Err` if it was not granted.
    #[inline]
    pub fn arrived(&mut self, cost: u64) -> Result<(), Beyond> {
        if cost > u64::from(self.room()) {
            return Err(Beyond);
        }
        self.arrived = self.arrived.wrapping_add(cost as u32);
        Ok(())
    }
}

/// What a rank lets all its peers send together: `total` bytes in shares, and beside them `spill` for the headers of
/// messages that stand before the one that a receive waits for; and each peer's floor.
#[derive(Debug, Clone)]
pub struct Budget {
    floor: u32,
    total: u32,
    left: u32,
    spill: u32,
    /// The least that was left of both together.
    least: u32,
    active: u32,
    /// A peer's floor and share: what its grant is while nothing is spilled and there is enough for all.
    even: u32,
}

impl Budget {
    /// Nothing is granted but the floors.
    #[inline]
    pub fn new(floor: u32, total: u32, spill: u32) -> Budget {
        Budget { floor, total, left: total, spill, least: total + spill, active: 0, even: floor + total / FEWEST }
    }

    /// What is granted of the shares and the spill, in bytes.
    #[inline]
    pub fn outstanding(&self, spill: u32) -> u32 {
        self.total - self.left + (spill - self.spill)
    }

    /// The most that was granted of them at once.
    #[inline]
    pub fn peak(&self, spill: u32) -> u32 {
        self.total + spill - self.least
    }

    /// A peer sends for the first time, and gets a share.
    #[inline]
    pub fn join(&mut self, grant: &mut Grant) {
        self.active += 1;
        self.even = self.floor + self.share();
        self.raise(grant);
    }

    /// A message of this cost came, and is not kept: as if it [arrived](Grant::arrived) and were [released](Self::release).
    #[inline(always)]
    pub fn pass(&mut self, grant: &mut Grant, cost: u64) -> Result<(), Beyond> {
        grant.arrived(cost)?;
        if grant.limit == self.even && grant.spilled == 0 {
            grant.released = grant.released.wrapping_add(cost as u32);
        } else {
            self.release(grant, cost as u32);
        }
        Ok(())
    }

    /// A message of this cost is kept no longer. What the peer has beyond its share is not granted again.
    #[inline]
    pub fn release(&mut self, grant: &mut Grant, cost: u32) {
        grant.released = grant.released.wrapping_add(cost);
        let unspilled = cost.min(grant.spilled);
        grant.spilled -= unspilled;
        self.spill += unspilled;
        let beyond = (grant.limit - grant.spilled - unspilled - self.floor).saturating_sub(self.share());
        let beyond = beyond.min(cost - unspilled);
        self.left += beyond;
        grant.limit -= unspilled + beyond;
        self.raise(grant);
    }

    /// A receive waits, and the peer may have to send other headers before: grants a few more if it can send none. Says
    /// whether that has changed anything.
    #[inline]
    pub fn spill(&mut self, grant: &mut Grant) -> bool {
        let need = grant.room() < HEADER && self.can_spill();
        if need {
            let more = self.spill.min(AT_A_TIME);
            grant.limit += more;
            grant.spilled += more;
            self.spill -= more;
            self.least = self.least.min(self.left + self.spill);
        }
        need
    }

    /// Whether there is a header left to [`spill`](Self::spill).
    #[inline]
    pub fn can_spill(&self) -> bool {
        self.spill >= HEADER
    }

    /// The peer is dead, and its grant with it.
    #[inline]
    pub fn leave(&mut self, grant: &Grant, joined: bool) {
        self.active -= u32::from(joined);
        self.even = self.floor + self.share();
        self.spill += grant.spilled;
        self.left += grant.limit - grant.spilled - self.floor;
    }

    #[inline]
    fn share(&self) -> u32 {
        self.total / self.active.max(FEWEST)
    }

    #[inline]
    fn raise(&mut self, grant: &mut Grant) {
        // Never all that is left: a peer that comes later would have its floor alone until the others send, who may be silent.
        let more = self.share().saturating_sub(grant.limit - grant.spilled - self.floor).min(self.left / 4);
        grant.limit += more;
        self.left -= more;
        self.least = self.least.min(self.left + self.spill);
    }
}
