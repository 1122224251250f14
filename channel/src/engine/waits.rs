//! What a request waits for, for reports of long waits.

use super::Engine;
use super::request::{Receive, Request};
use crate::error::Status;
use crate::matching::Select;
use crate::slab::Id;
use crate::wire::{Rank, Wire};

/// What a request that has not ended waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waits {
    /// Whether it is a send.
    pub sends: bool,
    /// The receiver, or the source; none for a receive from any source.
    pub peer: Option<Rank>,
    /// The tag; none for a receive with any tag.
    pub tag: Option<u32>,
    /// The first message of the same source and context that has come and that a posted receive does not take.
    pub other: Option<Status>,
}

impl<W: Wire> Engine<W> {
    /// What a send or receive waits for; none once it has ended.
    pub fn waits(&self, id: Id) -> Option<Waits> {
        match self.requests.get(id)? {
            Request::Send(send) => {
                Some(Waits { sends: true, peer: Some(send.to), tag: Some(send.envelope.tag), other: None })
            }
            Request::Receive(Receive { moving: Some(moving), .. }) => {
                Some(Waits { sends: false, peer: Some(moving.from), tag: Some(moving.envelope.tag), other: None })
            }
            Request::Receive(Receive { posted: Some(number), .. }) => {
                let select = self.matching.posted_select(*number)?;
                let other = self.matching.peek(Select { tag: None, ..select }).map(|(_, message)| message.status());
                Some(Waits { sends: false, peer: select.source, tag: select.tag, other })
            }
            _ => None,
        }
    }
}
