//! Receive ends that wait for the announcement of their send end.
//!
//! The n-th announcement from a source with a tag is for the n-th receive end made for them. A dropped receive end
//! keeps its place: its announcement is received, and its parts are discarded.

use super::cut::Announcement;
use super::discard::{discard, post_farewell};
use crate::messages::comm::ANNOUNCED;
use crate::messages::hold::Parts as _;
use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;
use transom_channel::{RecvTarget, Select, Status as Came};

/// All waiting receive ends of a rank, in the order in which they were made. No queue is empty.
#[derive(Default)]
pub(crate) struct Expected(HashMap<Lane, VecDeque<ExpectedEnd>>);

/// Matching key of partitioned messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Lane {
    /// First context of the world or team.
    pub context: u32,
    /// Sender, as a rank of the job.
    pub source: u32,
    pub tag: u32,
}

/// A receive end that the program holds.
pub(super) trait ReceiveEnd: Send + Sync {
    /// Handles the announcement, or the failure to receive it.
    fn announced(&self, core: &mut Core, announced: Result<Announcement, Fault>);
}

enum ExpectedEnd {
    Kept(Arc<dyn ReceiveEnd>),
    /// Number of consecutive dropped receive ends.
    Dropped(usize),
}

impl Expected {
    fn is_awaited(&self, lane: Lane) -> bool {
        self.0.contains_key(&lane)
    }

    /// Takes the first receive end of a lane; `None` if it was dropped.
    fn take(&mut self, lane: Lane) -> Option<Arc<dyn ReceiveEnd>> {
        let places = self.0.get_mut(&lane)?;
        let end = match places.front_mut()? {
            ExpectedEnd::Dropped(left) if *left > 1 => {
                *left -= 1;
                return None;
            }
            _ => places.pop_front(),
        };
        if places.is_empty() {
            self.0.remove(&lane);
        }
        match end {
            Some(ExpectedEnd::Kept(end)) => Some(end),
            _ => None,
        }
    }

    /// Marks a receive end as dropped, if it still waits. Consecutive dropped ends share an entry, so that they use no
    /// memory.
    pub(super) fn release<E: ReceiveEnd>(&mut self, lane: Lane, end: &Arc<E>) {
        let Some(places) = self.0.get_mut(&lane) else { return };
        let is_it = |place: &ExpectedEnd| matches!(place, ExpectedEnd::Kept(kept) if Arc::as_ptr(kept).cast::<()>() == Arc::as_ptr(end).cast());
        let Some(at) = places.iter().position(is_it) else { return };
        let dropped = |place: Option<&ExpectedEnd>| match place {
            Some(ExpectedEnd::Dropped(number)) => *number,
            _ => 0,
        };
        let (before, after) = (dropped(at.checked_sub(1).and_then(|at| places.get(at))), dropped(places.get(at + 1)));
        places[at] = ExpectedEnd::Dropped(before + 1 + after);
        if after > 0 {
            places.remove(at + 1);
        }
        if before > 0 {
            places.remove(at - 1);
        }
    }

    /// Removes the places of dropped teams. These are only places of dropped ends, since other ends keep their team.
    pub fn disband(&mut self, contexts: &RangeInclusive<u32>) {
        self.0.retain(|lane, _| !contexts.contains(&lane.context));
    }
}

/// Appends a receive end to its lane.
pub(super) fn expect(core: &mut Core, lane: Lane, end: Arc<dyn ReceiveEnd>) {
    let is_first = !core.expected.is_awaited(lane);
    core.expected.0.entry(lane).or_default().push_back(ExpectedEnd::Kept(end));
    if is_first {
        let announcement = post_announcement(core, lane);
        core.attend(Box::new(Announcements { lane, announcement }));
    }
}

fn post_announcement(core: &mut Core, lane: Lane) -> Key {
    let select = Select { context: lane.context + ANNOUNCED, source: Some(lane.source), tag: Some(lane.tag) };
    let bytes = vec![0_u8; Announcement::BYTES].hold();
    Key::Message(core.engine.receive(select, RecvTarget::Into(bytes, Announcement::BYTES)))
}

/// Receives the announcements of a lane in order, while a receive end waits.
struct Announcements {
    lane: Lane,
    announcement: Key,
}

impl Work for Announcements {
    fn progress(&mut self, core: &mut Core) -> Option<Ended> {
        let lane = self.lane;
        while core.expected.is_awaited(lane) {
            let (result, bytes) = core.ended(self.announcement)?;
            let announced = result.and_then(|came| {
                let bytes = bytes.and_then(|bytes| Vec::<u8>::back(bytes, came.length as usize)).unwrap_or_default();
                Announcement::decode(&bytes).map_err(Fault::Work)
            });
            match (core.expected.take(lane), announced) {
                (Some(end), announced) => end.announced(core, announced),
                (None, Ok(announcement)) => {
                    let farewell = post_farewell(core, lane, announcement.first, announcement.parts);
                    discard(core, lane, announcement.first, announcement.parts, farewell);
                }
                (None, Err(_)) => {}
            }
            if !core.expected.is_awaited(lane) {
                return Some(over());
            }
            self.announcement = post_announcement(core, lane);
        }
        // The team was dropped.
        core.forget(self.announcement);
        Some(over())
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        awaited.push(self.announcement);
        true
    }

    fn must_end(&self) -> bool {
        false
    }
}

/// Result of a composite operation without a value.
pub(super) fn over() -> Ended {
    (Ok(Came { peer: 0, tag: 0, length: 0 }), None)
}
