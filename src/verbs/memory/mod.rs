//! Registered memory: slots that operations travel through, the keys of regions, and what is kept for others.

mod buffer;
mod keys;
mod leases;
mod remains;
mod slots;

pub(super) use buffer::Buffer;
pub(super) use keys::Keys;
pub(super) use leases::{Lease, Leases};
pub(super) use remains::{Deferred, Remains};
pub(super) use slots::{Slot, Slots};

use super::sys::{Access, Domain};
use std::sync::Arc;

/// Bytes of a piece in which puts and gets that do not fit their requests travel.
const CHUNK: usize = 32 << 10;
/// As many pieces are registered at a time: 1 MiB, since little memory may be locked.
const CHUNKS: usize = 32;
/// Results of atomics.
const CELLS: usize = 512;
/// Regions whose words for that are registered at a time.
const COUNTS: usize = 512;
/// Bytes that are kept registered for further long reads.
const KEPT: usize = 16 << 20;

/// The slots of a rank.
pub(super) struct Memory {
    /// What puts and gets travel through.
    pub chunks: Arc<Slots>,
    /// Where results of atomics come.
    pub cells: Arc<Slots>,
    /// On which those who reach a region of this rank count themselves.
    pub counts: Arc<Slots>,
    /// What longer reads come to.
    pub leases: Arc<Leases<Buffer>>,
}

impl Memory {
    pub fn new(domain: &Arc<Domain>) -> Self {
        Memory {
            chunks: Slots::new(domain, Access::Local, CHUNK, CHUNKS),
            cells: Slots::new(domain, Access::Local, 8, CELLS),
            counts: Slots::new(domain, Access::Words, 8, COUNTS),
            leases: Leases::new(KEPT),
        }
    }
}

/// What a request has of this rank's memory until it is complete; free when dropped.
pub(super) enum Lent {
    Slot(Slot),
    Lease(Lease<Buffer>),
}

impl Lent {
    /// Copies what the adapter brought.
    pub fn read(&self, into: &mut [u8]) {
        match self {
            Lent::Slot(slot) => slot.read(into),
            Lent::Lease(buffer) => buffer.read(0, into),
        }
    }
}
