//! Reads of peers' buffers, alone or together with the owner.

use super::bytes::Bytes;
use super::inbox::Inbox;
use super::joint::{self, CooperativeCopy};
use crate::reach::Reach;
use std::collections::HashSet;
use transom_channel::wire::{Key, Part};
use transom_locks::Rank;
use transom_windows::FabricError;

/// Reads of a rank in flight, and the buffers that it offers.
pub(super) struct Reading {
    pub reach: Reach,
    /// Keys of this rank's buffers that peers may read now.
    pub offered: Vec<Key>,
    /// Cooperative reads whose last chunks the owner is still copying.
    joints: Vec<CooperativeCopy>,
    /// Owners that have failed to write to this rank's buffers.
    no_help: HashSet<Rank>,
}

/// A completed read: owner of the bytes, token, and result.
pub(super) type Read = (Rank, u64, Result<(), FabricError>);

impl Reading {
    pub fn new(reach: Reach) -> Self {
        Reading { reach, offered: Vec::new(), joints: Vec::new(), no_help: HashSet::new() }
    }

    /// Reads, cooperatively with the owner if that is worth it. `None` if the owner has still to finish its chunks.
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
            // SAFETY: `writable` has checked the bounds, no other code uses the target before the completion event, and
            // chunks do not overlap.
            unsafe { reach.read(owner, (from.0, from.1 + offset), (target.wrapping_add(offset), length)) }
        };
        // If this rank's own bytes are being read, or are about to be, its core is busy, and chunks would take longer
        // than one whole copy.
        let busy = !self.offered.is_empty() || mine.desk().is_taken();
        let alone = owner == reach.rank || reach.control.is_oversubscribed() || busy;
        let is_worth = |inbox: &Inbox| joint::is_worth(length, inbox.is_attended());
        let inbox = inbox.filter(|inbox| !alone && is_worth(inbox) && !self.no_help.contains(&owner));
        match inbox.and_then(|inbox| CooperativeCopy::read(reach, (owner, inbox), token, from, (target, length), copy))
        {
            Some(joint) => {
                self.joints.push(joint);
                self.over(self.joints.len() - 1)
            }
            None => Some((owner, token, copy(0, length))),
        }
    }

    /// True if a cooperative read waits for its owner.
    #[inline(always)]
    pub fn is_waiting(&self) -> bool {
        !self.joints.is_empty()
    }

    /// Takes a read whose owner has finished its chunks.
    pub fn ended(&mut self) -> Option<Read> {
        (0..self.joints.len()).rev().find_map(|at| self.over(at))
    }

    fn over(&mut self, at: usize) -> Option<Read> {
        let well = self.joints[at].ended()?;
        let CooperativeCopy { owner, token, what, target, error, .. } = self.joints.swap_remove(at);
        let read = match error {
            Some(error) => Err(error),
            None if well => Ok(()),
            None => {
                tracing::debug!(owner, "a rank cannot help to copy large messages");
                self.no_help.insert(owner);
                let target = std::ptr::with_exposed_provenance_mut(target);
                // SAFETY: as in `read`; `CooperativeCopy::read` has exposed the provenance, and the completion event is
                // still to come.
                unsafe { self.reach.read(owner, (what.from, what.at), (target, what.length)) }
            }
        };
        Some((owner, token, read))
    }

    /// Ends the reads from all owners that match: afterwards these owners do not write to the targets.
    pub fn end(&mut self, of: impl Fn(Rank) -> bool) {
        self.joints.extract_if(.., |joint| of(joint.owner)).for_each(|joint| joint.end(&self.reach));
    }
}
