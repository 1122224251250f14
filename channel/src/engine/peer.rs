//! The record of one peer: its parts, and functions that combine several of them.

use super::parts::connections::Lanes;
use super::parts::credits::Credits;
use super::parts::failover::Failover;
use super::parts::receive::Inbound;
use super::parts::rings::Rings;
use super::parts::transfers::Transfers;
use super::parts::transmit::Transmit;
use super::route::{Open, Routes};
use crate::config::Config;
use crate::packet::Values;
use crate::ring::RingConfig;
use crate::sequence::Beyond;
use crate::striping::Weights;
use crate::wire::Rank;

pub(super) struct Peer<M> {
    pub rank: Rank,
    /// True if the peer is on the same host; selects its routes.
    pub near: bool,
    /// Length in bytes below which messages may take the short path: see [`Routes`].
    pub short_below: usize,
    /// Size of the ring that the peer is given.
    pub ring: RingConfig,
    /// Most packets in flight to the peer.
    pub window: u32,
    pub lanes: Lanes,
    pub rings: Rings<M>,
    pub tx: Transmit,
    pub rx: Inbound<M>,
    pub credits: Credits,
    pub transfers: Transfers,
    /// State of its rails, once one was cut.
    pub failover: Option<Box<Failover<M>>>,
}

impl<M> Peer<M> {
    pub fn new(me: Rank, rank: Rank, near: bool, config: &Config, routes: &Routes) -> Peer<M> {
        let &Routes { short_below, ring, window, ref rails, .. } = routes;
        Peer {
            rank,
            near,
            short_below,
            ring,
            window,
            lanes: Lanes::default(),
            rings: Rings::default(),
            tx: Transmit::new(window),
            rx: Inbound::new(),
            credits: Credits::new(config.floor, window, ring.slots),
            transfers: Transfers::new(Weights::new(config.stripe, me, rails.iter().map(|rail| rail.bandwidth))),
            failover: None,
        }
    }

    /// Paths to the peer that are open now.
    pub fn open(&self) -> Open<'_> {
        let ring = self.rings.out.as_ref().filter(|_| self.lanes.is_up(0));
        Open { up: self.lanes.up(), ring, queued: self.tx.messages() as u64 }
    }

    /// Overdraft of this rank at the peer. A peer from which nothing was received is sent no more than its
    /// floor: it may be busy elsewhere, and many ranks may start with it at once.
    pub fn overdraft(&self, overdraft: u32) -> Option<u32> {
        self.tx.window.is_heard().then_some(overdraft)
    }

    /// Returns true if a packet of this rank with this number is the next to receive.
    #[inline(always)]
    pub fn is_next(&self, source: Rank, sequence: u32) -> bool {
        source == self.rank && self.rx.is_next(sequence)
    }

    /// Applies the values that a packet of the peer carries.
    #[inline(always)]
    pub fn credited(&mut self, values: Values) -> Result<(), Beyond> {
        self.tx.window.acked(values.ack)?;
        self.credits.send.granted(values.granted);
        self.rings.freed(values.ring, values.freed)
    }

    /// Returns true if a packet or request waits to be posted.
    pub fn has_work(&self) -> bool {
        self.rings.mark().is_some()
            || self.failover.as_ref().is_some_and(|failover| failover.has_work())
            || self.transfers.has_queued()
            || self.tx.has_work()
    }
}
