//! The replies that an origin awaits from one peer. They come in the order of the requests, so each belongs to the oldest
//! request without one.

use crate::carrier::malformed;
use crate::frame::{LONGEST, Malformed, Refusal, Reply};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use transom_windows::BoxBytes;

/// The result of a request.
pub enum Outcome {
    Word(u64),
    Data(BoxBytes),
    Flushed,
}

/// Results behind which no more slots are kept.
const ROW: usize = 1024;

/// Requests that have replies.
#[derive(Default)]
pub struct Slots {
    /// The slots from number `first` on.
    slots: VecDeque<Slot>,
    first: u64,
    /// Earlier slots, by number, whose results have not been taken. Some never are: a program may leak its request.
    left: BTreeMap<u64, Slot>,
    /// Number of the oldest slot without a complete reply.
    unanswered: u64,
    /// Bytes of that slot's reply that have not been [placed](Self::placed).
    missing: usize,
    /// Number of requests posted; and of those that are known to have been executed.
    pub posted: u64,
    pub executed: u64,
    /// The first put since the last flush that was not executed.
    pub refused: Option<Refusal>,
}

pub struct Slot {
    pub state: Answer,
    /// Value of `posted` after the post.
    pub posted: u64,
    /// The result is awaited.
    wanted: bool,
}

pub enum Answer {
    Word,
    Flushed,
    /// A get: its buffer, and the number of bytes that were answered. A get of n frames has n replies.
    Data {
        into: BoxBytes,
        answered: usize,
        refused: Option<Refusal>,
    },
    Done(Result<Outcome, Refusal>),
    Taken,
}

impl Slots {
    pub fn push(&mut self, state: Answer) -> u64 {
        self.slots.push_back(Slot { state, posted: 0, wanted: true });
        self.first + self.slots.len() as u64 - 1
    }

    pub fn slot(&mut self, number: u64) -> &mut Slot {
        match number.checked_sub(self.first) {
            Some(at) => &mut self.slots[at as usize],
            None => self.left.get_mut(&number).expect("a slot stays until its result is taken"),
        }
    }

    pub fn is_done(&mut self, number: u64) -> bool {
        matches!(self.slot(number).state, Answer::Done(_))
    }

    /// Takes the result of a slot, if it is there.
    pub fn take(&mut self, number: u64) -> Option<Result<Outcome, Refusal>> {
        let slot = self.slot(number);
        match std::mem::replace(&mut slot.state, Answer::Taken) {
            Answer::Done(result) => {
                self.trim(number);
                Some(result)
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Declares that no thread awaits the result.
    pub fn discard(&mut self, number: u64) {
        let slot = self.slot(number);
        slot.wanted = false;
        if let Answer::Done(_) = slot.state {
            slot.state = Answer::Taken;
            self.trim(number);
        }
    }

    /// Removes slots that are not needed, after a change of slot `number`.
    fn trim(&mut self, number: u64) {
        if number < self.first {
            self.left.remove(&number);
        }
        while let Some(slot) = self.slots.front() {
            match slot.state {
                Answer::Taken => drop(self.slots.pop_front()),
                // Otherwise a result that is never taken would keep all later slots.
                Answer::Done(_) if self.slots.len() > ROW => {
                    self.left.extend(self.slots.pop_front().map(|slot| (self.first, slot)));
                }
                _ => break,
            }
            self.first += 1;
        }
    }

    /// Number of slots.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.slots.len() + self.left.len()
    }

    /// Begins a reply that consists of `len` bytes, which belong at [`place`](Self::place).
    pub fn begin(&mut self, len: usize) -> io::Result<()> {
        match self.oldest()?.state {
            Answer::Data { ref into, answered, .. } if len == LONGEST.min(into.len() - answered) => {
                self.missing = len;
                self.placed(0)
            }
            _ => Err(malformed(Malformed)),
        }
    }

    /// The place of the bytes that come next, if a reply has begun.
    pub fn place(&mut self) -> io::Result<Option<&mut [u8]>> {
        let missing = self.missing;
        if missing == 0 {
            return Ok(None);
        }
        match &mut self.oldest()?.state {
            Answer::Data { into, answered, .. } => Ok(Some(&mut into[*answered..][..missing])),
            _ => Ok(None),
        }
    }

    /// Records that bytes are in their place.
    pub fn placed(&mut self, bytes: usize) -> io::Result<()> {
        self.missing -= bytes;
        let ends = self.missing == 0;
        if let Answer::Data { into, answered, refused } = &mut self.oldest()?.state {
            *answered += bytes;
            if ends && *answered == into.len() {
                let bytes = std::mem::replace(into, no_bytes());
                let result = refused.map_or(Ok(Outcome::Data(bytes)), Err);
                self.end(result)?;
            }
        }
        Ok(())
    }

    /// Records a reply that has no data.
    pub fn answer(&mut self, frame: &[u8]) -> io::Result<()> {
        let reply = Reply::parse(frame).map_err(malformed)?;
        if let Reply::PutRefused(why) = reply {
            self.refused.get_or_insert(why);
            return Ok(());
        }
        let result = match (&mut self.oldest()?.state, reply) {
            (Answer::Data { into, answered, refused }, Reply::Refused(why)) => {
                let why = *refused.get_or_insert(why);
                *answered += LONGEST.min(into.len() - *answered);
                if *answered < into.len() {
                    return Ok(());
                }
                Err(why)
            }
            (Answer::Word, Reply::Word(word)) => Ok(Outcome::Word(word)),
            (Answer::Flushed, Reply::Flushed) => Ok(Outcome::Flushed),
            (Answer::Word | Answer::Flushed, Reply::Refused(why)) => Err(why),
            _ => return Err(malformed(Malformed)),
        };
        self.end(result)
    }

    /// The slot that the next reply belongs to.
    fn oldest(&mut self) -> io::Result<&mut Slot> {
        let at = (self.unanswered - self.first) as usize;
        self.slots.get_mut(at).ok_or_else(|| malformed(Malformed))
    }

    /// Records the result of the oldest slot without one.
    fn end(&mut self, result: Result<Outcome, Refusal>) -> io::Result<()> {
        let slot = self.oldest()?;
        slot.state = if slot.wanted { Answer::Done(result) } else { Answer::Taken };
        self.executed = slot.posted;
        self.unanswered += 1;
        self.trim(self.unanswered - 1);
        Ok(())
    }
}

fn no_bytes() -> BoxBytes {
    BoxBytes::from(Box::<[u8]>::default())
}
