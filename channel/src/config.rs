//! What can be chosen.

use crate::polling::Order;
use crate::ring::Shape;

/// Sizes and limits of a rank. The same at all ranks of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The longest message that is sent unasked, in bytes.
    pub eager: usize,
    /// The rings.
    pub ring: Shape,
    /// Rings that a rank has for its peers at most.
    pub rings: usize,
    /// The packets after which a peer gets one.
    pub ring_after: u32,
    /// How rings are polled.
    pub order: Order,
    /// Packets to one peer that are not acknowledged at most, and so the packets that are held.
    pub window: u32,
    /// Bytes that each peer may send before any receive, unasked; 64 a message beside its data.
    pub floor: u32,
    /// Bytes beyond the floors that all peers may send together.
    pub budget: u32,
    /// Bytes for the headers of messages before the one that a receive waits for.
    pub spill: u32,
    /// Nanoseconds after which a credit is told by a packet of its own, if none goes that way.
    pub credit_delay: u64,
    /// Bytes from which on a message is not copied in packets, if memory can be registered.
    pub zero_copy_from: u64,
    /// Bytes of a stripe at least.
    pub stripe_from: u64,
    /// Whether a message that waits offers its memory to be read.
    pub offer: bool,
    /// Events, and packets of a ring, that one turn of progress takes at most.
    pub batch: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager: 8192,
            ring: Shape { slots: 32, bytes: 2048 },
            rings: 8,
            ring_after: 16,
            order: Order::Circular,
            window: 64,
            floor: 256,
            budget: 4 << 20,
            spill: 4 << 20,
            credit_delay: 50_000,
            zero_copy_from: 32 << 10,
            stripe_from: 64 << 10,
            offer: true,
            batch: 64,
        }
    }
}

/// Which choice cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, and must be {must}")]
pub struct Misconfigured {
    /// Which.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// What it must be.
    pub must: &'static str,
}

impl Config {
    /// Whether all can be, with packets of this length.
    pub fn check(&self, longest: usize) -> Result<(), Misconfigured> {
        let rows = [
            (
                "eager",
                self.eager as u64,
                self.eager + crate::packet::SYNC <= longest,
                "less than the rail's longest send",
            ),
            (
                "ring",
                self.ring.size() as u64,
                self.ring.is_sound(),
                "2 to 1024 slots of 64 to 65536 bytes, divisible by 8",
            ),
            ("ring.bytes", self.ring.bytes.into(), self.ring.longest() >= crate::packet::LONGEST, "at least 144"),
            ("window", self.window.into(), (2..=1 << 16).contains(&self.window), "2 to 65536"),
            ("floor", self.floor.into(), (128..=1 << 16).contains(&self.floor), "128 to 65536"),
            ("budget", self.budget.into(), self.budget <= 1 << 30, "1 GiB at most"),
            ("spill", self.spill.into(), (64..=1 << 30).contains(&self.spill), "64 B to 1 GiB"),
            ("zero_copy_from", self.zero_copy_from, self.zero_copy_from > 0, "at least 1"),
            ("batch", self.batch as u64, self.batch > 0, "at least 1"),
        ];
        match rows.into_iter().find(|(_, _, holds, _)| !holds) {
            Some((field, value, _, must)) => Err(Misconfigured { field, value, must }),
            None => Ok(()),
        }
    }
}
