//! Credits as values that only grow: the bytes of unreceived messages that a rank lets each peer send.
//!
//! Data needs credit: without credit the sender sends an RTS, and keeps the data. An RTS, or a message of at
//! most [`SHORT`] bytes, goes without credit too. It overdraws the account, up to an *overdraft* that both
//! sides know. So missing credit never holds back an envelope that a receive may wait for, and the data that
//! a receiver buffers is bounded.

use crate::sequence::{Beyond, reached};

/// Cost of an envelope in bytes: what each unreceived message costs its receiver beside its data.
pub const HEADER: u32 = 64;

/// The longest message that goes without credit, in bytes: its data costs the receiver at most as much as its
/// envelope.
pub const SHORT: u32 = HEADER;

/// Smallest number of peers that the budget is divided among.
const FEWEST: u32 = 8;

/// A sender's credit at one peer.
#[derive(Debug, Clone)]
pub struct SendCredits {
    granted: u32,
    spent: u32,
}

impl SendCredits {
    /// Credit at a peer from which nothing was received yet: `floor` bytes.
    #[inline]
    pub fn new(floor: u32) -> SendCredits {
        SendCredits { granted: floor, spent: 0 }
    }

    /// Credit left in bytes; 0 while it is overdrawn.
    #[inline]
    pub fn room(&self) -> u32 {
        self.balance().max(0) as u32
    }

    /// Returns true if a message of this cost can be sent on credit.
    #[inline(always)]
    pub fn affords(&self, cost: u64) -> bool {
        i64::from(self.balance()) >= cost as i64
    }

    /// Returns true if an envelope of this cost, at most that of a [`SHORT`] message, can be sent, on credit or on
    /// overdraft.
    #[inline]
    pub fn can_overdraw(&self, cost: u32, overdraft: u32) -> bool {
        i64::from(self.balance()) + i64::from(overdraft) >= i64::from(cost)
    }

    /// Bytes by which credit is overdrawn.
    #[inline]
    pub fn overdrawn(&self) -> u32 {
        self.balance().min(0).unsigned_abs()
    }

    /// Sends a message of this cost.
    #[inline]
    pub fn spend(&mut self, cost: u32) {
        self.spent = self.spent.wrapping_add(cost);
    }

    /// Applies a granted value received from the peer. Late values change nothing.
    #[inline]
    pub fn granted(&mut self, granted: u32) {
        if reached(granted, self.granted) {
            self.granted = granted;
        }
    }

    #[inline(always)]
    fn balance(&self) -> i32 {
        self.granted.wrapping_sub(self.spent) as i32
    }
}

/// A receiver's account of one peer: credit for `limit` bytes of unreceived messages.
#[derive(Debug, Clone)]
pub struct CreditGrant {
    limit: u32,
    arrived: u32,
    released: u32,
}

impl CreditGrant {
    /// Credit of a peer that has not sent: the same as its [`SendCredits`].
    #[inline]
    pub fn new(floor: u32) -> CreditGrant {
        CreditGrant { limit: floor, arrived: 0, released: 0 }
    }

    /// The granted value to report to the peer.
    #[inline]
    pub fn value(&self) -> u32 {
        self.released.wrapping_add(self.limit)
    }

    /// Most bytes of unreceived messages on credit.
    #[inline]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Bytes of the peer's unreceived messages, on credit and on overdraft.
    #[inline]
    pub fn kept(&self) -> u32 {
        self.arrived.wrapping_sub(self.released)
    }

    /// Credit left in bytes; 0 while it is overdrawn.
    #[inline]
    pub fn room(&self) -> u32 {
        self.limit.saturating_sub(self.kept())
    }
}

/// Credit that a rank gives all its peers: `total` bytes in shares beyond each peer's floor, and each peer's overdraft.
#[derive(Debug, Clone)]
pub struct Budget {
    floor: u32,
    total: u32,
    left: u32,
    overdraft: u32,
    /// Smallest value of `left` so far.
    least: u32,
    active: u32,
    /// A peer's floor and share: its limit while there is enough for all.
    even: u32,
}

impl Budget {
    /// A budget of which only the floors are granted.
    #[inline]
    pub fn new(floor: u32, total: u32, overdraft: u32) -> Budget {
        Budget { floor, total, left: total, overdraft, least: total, active: 0, even: floor + total / FEWEST }
    }

    /// Bytes of the shares granted now.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.total - self.left
    }

    /// Most bytes of the shares granted at once.
    #[inline]
    pub fn peak(&self) -> u32 {
        self.total - self.least
    }

    /// Gives a share to a peer that sends for the first time.
    #[inline]
    pub fn join(&mut self, grant: &mut CreditGrant) {
        self.active += 1;
        self.even = self.floor + self.share();
        self.raise(grant);
    }

    /// Records the arrival of a message of this cost; `Err` if its sender had neither credit nor overdraft
    /// for it.
    #[inline]
    pub fn arrived(&self, grant: &mut CreditGrant, cost: u64) -> Result<(), Beyond> {
        if cost > u64::from(grant.room()) {
            let is_short = cost <= u64::from(HEADER + SHORT);
            let most = u64::from(grant.limit) + u64::from(self.overdraft);
            if !is_short || u64::from(grant.kept()) + cost > most {
                return Err(Beyond);
            }
        }
        grant.arrived = grant.arrived.wrapping_add(cost as u32);
        Ok(())
    }

    /// Records a message of this cost that was received at once: [`arrived`](Self::arrived) and
    /// [`release`](Self::release) in one.
    #[inline(always)]
    pub fn pass(&mut self, grant: &mut CreditGrant, cost: u64) -> Result<(), Beyond> {
        self.arrived(grant, cost)?;
        if grant.limit == self.even {
            grant.released = grant.released.wrapping_add(cost as u32);
        } else {
            self.release(grant, cost as u32);
        }
        Ok(())
    }

    /// Records that the program received a message of this cost. Credit beyond the peer's share is not
    /// granted again.
    #[inline]
    pub fn release(&mut self, grant: &mut CreditGrant, cost: u32) {
        grant.released = grant.released.wrapping_add(cost);
        let beyond = (grant.limit - self.floor).saturating_sub(self.share()).min(cost);
        self.left += beyond;
        grant.limit -= beyond;
        self.raise(grant);
    }

    /// Reclaims the grant of a peer that died.
    #[inline]
    pub fn leave(&mut self, grant: &CreditGrant, joined: bool) {
        self.active -= u32::from(joined);
        self.even = self.floor + self.share();
        self.left += grant.limit - self.floor;
    }

    #[inline]
    fn share(&self) -> u32 {
        self.total / self.active.max(FEWEST)
    }

    #[inline]
    fn raise(&mut self, grant: &mut CreditGrant) {
        // Keep a reserve: peers that hold credit may stay silent, and a later peer would have its floor
        // alone.
        let more = self.share().saturating_sub(grant.limit - self.floor).min(self.left / 4);
        grant.limit += more;
        self.left -= more;
        self.least = self.least.min(self.left);
    }
}
