//! Discards parts that no receive end takes, because the receive end was dropped or does not match its send end. This
//! rank receives them into nothing, so that the sender gets its credits back and its rounds end.

use super::expected::{Lane, over};
use crate::messages::comm::PARTS;
use crate::messages::ended_lists::ListId;
use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use transom_channel::{Error as Failure, RecvTarget, Select};
use transom_shm_loopback::messages::Bytes;

/// Most parts that are discarded for one send end, so that a huge announcement costs this rank no memory.
const MOST_PARTS: usize = 1 << 20;

/// Posts the receive of the farewell, which a dropped send end sends after all its parts.
pub(super) fn post_farewell(core: &mut Core, lane: Lane, first: u32, parts: usize) -> Key {
    post(core, lane, first + parts as u32)
}

/// Receives and discards all parts of a send end, until the farewell has come.
pub(super) fn discard(core: &mut Core, lane: Lane, first: u32, parts: usize, farewell: Key) {
    if parts > MOST_PARTS {
        return core.forget(farewell);
    }
    let list = core.lists.open();
    core.list(farewell, list, parts);
    let posted = vec![None; parts];
    let mut discarding = Discarding { lane, first, list, farewell: Some(farewell), posted, unawaited: vec![parts] };
    for part in 0..parts {
        discarding.post(core, part);
    }
    if discarding.progress(core).is_none() {
        core.attend(Box::new(discarding));
    }
}

/// Posts a receive of a part or of the farewell, into no memory.
fn post(core: &mut Core, lane: Lane, tag: u32) -> Key {
    let select = Select { context: lane.context + PARTS, source: Some(lane.source), tag: Some(tag) };
    let nothing = RecvTarget::Into(Bytes::owned(Box::<[u8]>::default()), 0);
    Key::Message(core.engine.receive(select, nothing))
}

struct Discarding {
    lane: Lane,
    /// Tag of the first part.
    first: u32,
    /// List of the numbers of parts that have arrived. The number after the last part is the farewell's.
    list: ListId,
    farewell: Option<Key>,
    /// Receive of each part.
    posted: Vec<Option<Key>>,
    /// Numbers, as on the list, of receives posted in the last step, which this operation does not await yet.
    unawaited: Vec<usize>,
}

impl Discarding {
    fn post(&mut self, core: &mut Core, part: usize) {
        let key = post(core, self.lane, self.first + part as u32);
        core.list(key, self.list, part);
        self.posted[part] = Some(key);
        self.unawaited.push(part);
    }
}

impl Work for Discarding {
    fn progress(&mut self, core: &mut Core) -> Option<Ended> {
        while let Some(number) = core.lists.pop(self.list) {
            let slot = self.posted.get_mut(number).unwrap_or(&mut self.farewell);
            let Some((result, _)) = slot.take().and_then(|key| core.ended(key)) else { continue };
            let came = matches!(result, Ok(_) | Err(Fault::Message(Failure::Truncated { .. })));
            if came && number < self.posted.len() {
                self.post(core, number);
            }
        }
        if self.farewell.is_some() {
            return None;
        }
        // All messages that the sender sent before its farewell have been matched. An unmatched receive gets no
        // message.
        let mut moving = false;
        for posted in &mut self.posted {
            *posted = posted.take().filter(|key| core.withdraw(*key).is_none());
            moving |= posted.is_some();
        }
        if moving {
            return None;
        }
        core.lists.close(self.list);
        Some(over())
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        let posted = |number: usize| self.posted.get(number).copied().unwrap_or(self.farewell);
        awaited.extend(self.unawaited.drain(..).filter_map(posted));
        true
    }

    fn must_end(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::messages::Tag;

    /// Idle send ends whose receive ends were dropped add no work to the receiver's progress calls.
    #[test]
    fn idle_discarded_ends_take_no_steps() {
        const PARTS: Tag<u64> = Tag::new(1);
        const MEET: Tag<u8> = Tag::new(2);
        const ENDS: usize = 100;
        crate::threads(2, |world| {
            let progress_engine = &world.space().comm().unwrap().progress_engine;
            let steps = || progress_engine.with(|core| core.steps).unwrap();
            let other = 1 - world.rank();
            let meet = || world.sendrecv(other, MEET, &[0], other, MEET, &mut [1]).unwrap();
            if world.rank() == 0 {
                let ends: Vec<_> = (0..ENDS).map(|_| world.psend_init(1, PARTS, vec![7; 4], 2).unwrap()).collect();
                meet();
                meet();
                // Two rounds of each end, and the farewell.
                for mut end in ends {
                    for _ in 0..2 {
                        let mut parts = end.start().unwrap();
                        parts.parts().for_each(|part| part.ready());
                        parts.wait().unwrap();
                    }
                }
                meet();
            } else {
                (0..ENDS).for_each(|_| drop(world.precv_init(0, PARTS, vec![0; 4], 2).unwrap()));
                let turns = || (0..50).for_each(|_| world.progress().unwrap());
                meet();
                turns();
                assert_eq!(progress_engine.with(|core| core.lists.len()).unwrap(), ENDS);
                let before = steps();
                turns();
                // Every composite operation takes a step now and then, once or twice in this time.
                assert!(steps() - before <= 4 * ENDS as u64, "{} steps in 50 turns", steps() - before);
                meet();
                meet();
                turns();
                assert_eq!(
                    progress_engine.with(|core| core.lists.len()).unwrap(),
                    0,
                    "discarding receives did not end with the farewell"
                );
            }
        })
        .unwrap();
    }
}
