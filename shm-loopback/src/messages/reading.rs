//! Reads of peers' buffers, alone or together with the owner.

use super::bytes::Bytes;
use super::inbox::Inbox;
use super::joint::{self, Joint};
use crate::reach::Reach;
use std::collections::HashSet;
use transom_channel::wire::{Key, Part};
use transom_locks::Rank;
use transom_windows::FabricError;

/// The reads of a rank.
pub(super) struct Reading {
    pub reach: Reach,
    /// Buffers of this rank that others may read now.
    pub offered: Vec<Key>,
    /// Those whose last chunks are with who owns the bytes.
    joints: Vec<Joint>,
    /// Owners that cannot write to this rank's buffers.
    no_help: HashSet<Rank>,
}

/// A read that is over: of whose bytes, its token, and how it went.
pub(super) type Read = (Rank, u64, Result<(), FabricError>);

impl Reading {
    pub fn new(reach: Reach) -> Self {
        Reading { reach, offered: Vec::new(), joints: Vec::new(), no_help: HashSet::new() }
    }

    /// Reads, together with the owner if that is worth it. None if the owner has still to do its part.
    pub fn read(
        &mut self,
        (owner, inbox, mine): (Rank, Option<&Inbox>, &Inbox),
        from: (Key, usize),
        into: Part<'_, Bytes>,
        token: u64,
    ) -> Option<Read> {
        let reach = &self.reach;
        let (target, length) = (into.memory.writable(into.at, into.length), into.length);
        let copy = |offset, length| {
            // SAFETY: `writable` has checked that it is within, nobody else uses it before the event, and chunks are apart.
            unsafe { reach.read(owner, (from.0, from.1 + offset), (target.wrapping_add(offset), length)) }
        };
        // Who reads here meanwhile, or is about to, is busy, and chunks take longer than the whole at once.
        let busy = !self.offered.is_empty() || mine.desk().is_taken();
        let alone = owner == reach.rank || reach.control.is_oversubscribed() || busy;
        let is_worth = |inbox: &Inbox| joint::is_worth(length, inbox.is_attended());
        let inbox = inbox.filter(|inbox| !alone && is_worth(inbox) && !self.no_help.contains(&owner));
        match inbox.and_then(|inbox| Joint::read(reach, (owner, inbox), token, from, (target, length), copy)) {
            Some(joint) => {
                self.joints.push(joint);
                self.over(self.joints.len() - 1)
            }
            None => Some((owner, token, copy(0, length))),
        }
    }

    /// Whether any waits for its owner.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        !self.joints.is_empty()
    }

    /// One whose owner has done its part.
    pub fn ended(&mut self) -> Option<Read> {
        (0..self.joints.len()).rev().find_map(|at| self.over(at))
    }

    fn over(&mut self, at: usize) -> Option<Read> {
        let well = self.joints[at].ended()?;
        let Joint { owner, token, what, target, error, .. } = self.joints.swap_remove(at);
        let read = match error {
            Some(error) => Err(error),
            None if well => Ok(()),
            None => {
                tracing::debug!(owner, "a rank cannot help to copy large messages");
                self.no_help.insert(owner);
                let target = std::ptr::with_exposed_provenance_mut(target);
                // SAFETY: as in `read`; `Joint::read` has exposed it, and the event is still to come.
                unsafe { self.reach.read(owner, (what.from, what.at), (target, what.length)) }
            }
        };
        Some((owner, token, read))
    }

    /// From here on the owners of what is read write no longer.
    pub fn end(&mut self, of: impl Fn(Rank) -> bool) {
        self.joints.extract_if(.., |joint| of(joint.owner)).for_each(|joint| joint.end(&self.reach));
    }
}
