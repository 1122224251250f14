//! What a rank has of the collectives of its job or team: a block of registered memory, with a place for each step where one
//! other says something, and a word that says how many collectives this rank has done.
//!
//! Places and bytes are there twice, for collectives of even and of odd numbers. Who says something in collective `i` has
//! ended `i - 1`, so all have begun that, and ended `i - 2`, whose places and bytes nobody needs any more.

use crate::VerbsError;
use crate::connect::{Service, Twin};
use crate::memory::{Buffer, Keys};
use crate::sys::Access;
use crate::wr::Place;
use std::collections::HashMap;
use std::sync::Mutex;
use transom_channel::wire::RAILS;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Steps that there are places for: more ranks do not share a lock word.
const STEPS: usize = 16;
/// A place: a word (twice the collective's number, and the flag), an address, a length, a key for each rail.
const PLACE: usize = 24 + RAILS * size_of::<u32>();
/// Where the word is that says how many collectives a rank has done.
pub(super) const DONE: usize = 2 * STEPS * PLACE;
pub(super) const BLOCK: usize = DONE + 8;
/// What a rank has of the collectives of its job or team.
pub(super) struct Mail {
    pub block: Buffer,
    /// The blocks of all, by rank.
    pub blocks: Box<[Place]>,
    /// By which further rails name them, if there are several.
    pub further: Box<[Box<[u32]>]>,
    /// Threads make collective calls one after another.
    pub turn: Mutex<Turn>,
}

pub(super) struct Turn {
    /// Collectives begun.
    pub number: u64,
    /// Registered memory with bytes for others, of even and odd collectives; in use is the last.
    pub bytes: [Vec<Buffer>; 2],
    /// Of the blocks of ranks that this one speaks to.
    pub twins: HashMap<Rank, Twin>,
}

/// A block that the others have not yet been told of.
pub(super) struct Block(Buffer);

impl Block {
    pub fn new(service: &Service) -> Result<Self, VerbsError> {
        let block = Buffer::new(&service.core.rail.domain, BLOCK, Access::All)?;
        Ok(Block(block.also(service.further_domains(), Access::Bytes)))
    }

    /// What leads others to it.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.keys().to_bytes(&[])
    }

    /// Once all have told theirs.
    pub fn with<'b>(self, all: impl Iterator<Item = &'b [u8]>) -> Result<Mail, FabricError> {
        let read = |(rank, bytes)| {
            let keys = Keys::from_bytes(bytes).and_then(|(keys, _)| Some((keys.place(0)?, keys)));
            let keys = keys.filter(|(place, _)| place.address.checked_add(BLOCK as u64).is_some());
            keys.ok_or_else(|| FabricError::BadKey { rank, why: "no block of collectives".into(), source: None })
        };
        let several = !self.0.keys().further().is_empty();
        let (mut blocks, mut further) = (Vec::new(), Vec::new());
        for told in all.enumerate() {
            let (place, keys) = read(told)?;
            blocks.push(place);
            if several {
                further.push(keys.further().into());
            }
        }
        let (bytes, twins) = Default::default();
        let (blocks, further) = (blocks.into(), further.into());
        Ok(Mail { block: self.0, blocks, further, turn: Mutex::new(Turn { number: 0, bytes, twins }) })
    }
}

impl Mail {
    /// Bytes for each rank of the job or team.
    pub const EACH: usize = size_of::<Place>();

    /// Where the place of a step is, in the collective of that number.
    pub fn place(number: u64, step: usize) -> usize {
        (number as usize % 2 * STEPS + step) * PLACE
    }
}
