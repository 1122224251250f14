//! What a rank keeps of one peer.

use super::cuts::Failover;
use super::request::cost;
use super::route::Routes;
use crate::config::Config;
use crate::connection::Connection;
use crate::credit::{Grant, HEADER, Purse, SHORT};
use crate::packet::{Body, Envelope, Keys, Packet, Values};
use crate::rates::Rates;
use crate::ring::{self, Shape};
use crate::sequence::{Beyond, FARTHEST, Incoming, Outgoing, reached};
use crate::slab::Id;
use crate::striping::{Rails, Weights};
use crate::wire::{Key, RAILS, Rank};
use std::collections::VecDeque;

pub(super) struct Peer<M> {
    pub rank: Rank,
    /// Which rails lead to it, and by which rules.
    pub near: bool,
    /// Of messages, that which the short path may send: see [`Routes`].
    pub short_below: usize,
    /// What the ring is like that it is given, and how many packets may be under way.
    pub ring: Shape,
    pub window: u32,
    /// Rails that packets and data may go by.
    pub up: [bool; RAILS],
    /// Its connections, where there are datagrams too; else they are made at once, and kept.
    pub connection: Connection,
    /// Rails of these that the wire has connected.
    pub wired: [bool; RAILS],
    /// Packets that went to it by datagrams.
    pub datagrams: u64,
    /// Rails that it was asked for.
    pub asked: [bool; RAILS],
    /// Where the next packet by a queue is in the row of rails.
    pub turn: usize,
    /// What long messages to it, or from it, are divided by.
    pub weights: Weights,
    /// By which way its long messages come, once there was a choice.
    pub rates: Option<Box<Rates>>,
    pub outgoing: Outgoing,
    pub incoming: Incoming<Held<M>>,
    /// A message of which pieces have come, and the last has not.
    pub gathering: Option<Gathering<M>>,
    pub purse: Purse,
    pub grant: Grant,
    /// It has sent a message, and has a share of the budget.
    pub joined: bool,
    /// What rides on a packet that goes now, and what the last that went took along.
    pub values: Values,
    pub told: Values,
    /// Since when something of them is untold.
    pub owed_since: Option<u64>,
    /// The acknowledgement that it can read beside its ring; none where it is told by packets. It is never behind by more than some
    /// packets, also when others have told it newer ones meanwhile: what it reads there must not be so old that it seems new.
    pub published: Option<u32>,
    /// It stands in the engine's list of those whose values this rank reads.
    pub heard: bool,
    pub ring_out: Option<ring::Sender>,
    pub ring_in: Option<RingIn<M>>,
    /// The number of that ring while its packets are handled; the peer may leave it meanwhile.
    pub ring_polled: Option<u16>,
    pub ring_refused: bool,
    /// The last of its rings that it was asked to leave.
    pub leaves: Option<u16>,
    /// The mark of a ring's last message, which the wire has not taken yet. Nothing goes before it.
    pub mark: Option<(Key, usize, u64)>,
    /// Writes and reads to post.
    pub moves: VecDeque<Move>,
    /// Packets that answer. At most a few for each request of either side.
    pub replies: VecDeque<Reply>,
    /// Messages that wait for their turn, in order.
    pub sends: VecDeque<Id>,
    /// Messages whose data is being copied.
    pub copies: VecDeque<Id>,
    /// Packets that went, and came, by the queue of each rail since it was up.
    pub went: [u32; RAILS],
    pub came: [u32; RAILS],
    /// By rail, pieces that are posted and have not ended, where rails take them as they are free.
    pub pulled: [u8; RAILS],
    /// Writes and reads that are posted, where there are several rails: by token.
    pub posted: Vec<(u64, Move)>,
    /// Once a rail was cut.
    pub failover: Option<Box<Failover<M>>>,
    /// It stands in the engine's list of those to post for.
    pub listed: bool,
    /// Nothing waits to be posted: what the short path looks at. Whoever adds something lists the peer, which unsets it.
    pub clear: bool,
    /// It stands in the engine's list of those to whom credits are owed.
    pub owing: bool,
}

/// A message in pieces.
pub(super) struct Gathering<M> {
    pub envelope: Envelope,
    pub sync: Option<Id>,
    pub memory: M,
    pub at: u64,
}

/// A packet that came early.
pub(super) struct Held<M> {
    pub packet: Packet,
    pub data: M,
    pub length: usize,
}

pub(super) struct RingIn<M> {
    pub half: ring::Receiver,
    pub memory: M,
    pub key: Key,
}

pub(super) struct Reply {
    pub body: Body,
    /// The lane that it must go by, since it follows other requests there.
    pub rail: Option<usize>,
}

pub(super) struct Move {
    pub id: Id,
    pub rail: usize,
    pub offset: u64,
    pub length: u64,
    /// The peer's memory, by each rail that it is registered with.
    pub keys: Keys,
    /// Rails that may take it, if it goes by whichever is free.
    pub any: Rails,
    /// A write; else a read.
    pub writes: bool,
    /// Of a write, until it is posted first.
    pub fin: Option<Body>,
}

impl<M> Peer<M> {
    pub fn new(rank: Rank, near: bool, config: &Config, routes: &Routes) -> Peer<M> {
        let &Routes { short_below, ring, window, ref rails, .. } = routes;
        Peer {
            rank,
            near,
            short_below,
            ring,
            window,
            up: [false; RAILS],
            connection: Connection::default(),
            wired: [false; RAILS],
            datagrams: 0,
            gathering: None,
            asked: [false; RAILS],
            turn: 0,
            weights: Weights::new(config.stripe, rails.iter().map(|rail| rail.bandwidth)),
            rates: None,
            outgoing: Outgoing::new(window),
            incoming: Incoming::new(FARTHEST),
            purse: Purse::new(config.floor),
            grant: Grant::new(config.floor),
            joined: false,
            values: Values { granted: config.floor, ..Values::default() },
            told: Values { granted: config.floor, ..Values::default() },
            owed_since: None,
            published: None,
            heard: false,
            ring_out: None,
            ring_in: None,
            ring_polled: None,
            ring_refused: false,
            leaves: None,
            mark: None,
            moves: VecDeque::new(),
            pulled: [0; RAILS],
            replies: VecDeque::new(),
            sends: VecDeque::new(),
            copies: VecDeque::new(),
            went: [0; RAILS],
            came: [0; RAILS],
            posted: Vec::new(),
            failover: None,
            listed: false,
            clear: true,
            owing: false,
        }
    }

    pub fn is_up(&self) -> bool {
        self.up.contains(&true)
    }

    /// Whether a message can be announced. A peer that has not been heard from is sent no more than its floor: it may be busy elsewhere,
    /// and many ranks may begin with it at once.
    pub fn can_announce(&self, overdraft: u32) -> bool {
        self.purse.affords(HEADER.into()) || self.can_overdraw(HEADER, overdraft)
    }

    /// Whether a message can be sent with its data: on credit, or on overdraft if it is short.
    pub fn can_send(&self, length: u64, overdraft: u32) -> bool {
        let cost = cost(length);
        self.purse.affords(cost) || length <= SHORT.into() && self.can_overdraw(cost as u32, overdraft)
    }

    fn can_overdraw(&self, cost: u32, overdraft: u32) -> bool {
        self.outgoing.is_heard() && self.purse.can_overdraw(cost, overdraft)
    }

    /// Whether something is being written to it, where that is kept.
    pub fn is_written_to(&self) -> bool {
        self.posted.iter().any(|(_, posted)| posted.writes)
    }

    /// Whether its ring takes a packet of so many bytes now.
    pub fn has_slot(&self, bytes: usize) -> bool {
        self.up[0] && self.ring_out.as_ref().is_some_and(|ring| ring.claim(bytes).is_some())
    }

    /// How much of each value is untold.
    #[inline(always)]
    fn untold(&self) -> [u32; 3] {
        let Values { ack, granted, freed, .. } = self.values;
        [ack.wrapping_sub(self.told.ack), granted.wrapping_sub(self.told.granted), freed.wrapping_sub(self.told.freed)]
    }

    /// Whether a packet of this number, from this rank, is the next that is to be received.
    #[inline(always)]
    pub fn is_next(&self, source: Rank, sequence: u32) -> bool {
        source == self.rank && sequence == self.incoming.expected() && !self.incoming.is_holding()
    }

    pub fn owes(&self) -> bool {
        self.untold() != [0; 3]
    }

    /// Whether a credit is to be told now: it is late, or half of what the peer has is untold, so that it might run out.
    pub fn is_due(&self, now: u64, config: &Config) -> bool {
        let late = self.owed_since.is_some_and(|since| now.saturating_sub(since) >= config.credit_delay);
        self.owes() && late || self.is_half_untold()
    }

    /// Whether half of something that the peer needs is untold, or what it reads beside its ring is as old as that.
    #[inline(always)]
    pub fn is_half_untold(&self) -> bool {
        // Of all there are two at least.
        let is_half = |untold: u32, all: u32| untold >= all / 2;
        let [ack, granted, freed] = self.untold();
        let age = self.published.map_or(0, |published| self.values.ack.wrapping_sub(published));
        is_half(ack.max(age), self.window) || is_half(granted, self.grant.limit()) || is_half(freed, self.ring.slots)
    }

    /// Takes the values that it tells.
    #[inline(always)]
    pub fn credited(&mut self, values: Values) -> Result<(), Beyond> {
        self.outgoing.acked(values.ack)?;
        self.purse.granted(values.granted);
        // Of another ring, an older one, the count says nothing of this one.
        if let Some(ring) = self.ring_out.as_mut().filter(|ring| ring.ring == values.ring) {
            ring.freed(values.freed)?;
        }
        Ok(())
    }

    /// Its grant has changed.
    #[inline(always)]
    pub fn regrant(&mut self) {
        debug_assert!(reached(self.grant.value(), self.values.granted), "a credit is never taken back");
        self.values.granted = self.grant.value();
    }

    /// A packet with all values is under way.
    #[inline(always)]
    pub fn tell(&mut self) {
        self.told = self.values;
        self.owed_since = None;
    }

    /// Whether something waits to be posted.
    pub fn has_work(&self) -> bool {
        self.mark.is_some()
            || self.failover.as_ref().is_some_and(|failover| failover.has_work())
            || !(self.moves.is_empty() && self.replies.is_empty() && self.sends.is_empty() && self.copies.is_empty())
    }
}
