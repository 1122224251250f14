//! Record of the calls that a rank has made recently.

use super::signature::Signature;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// One call of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId {
    /// Number of calls before this one in the group, modulo 2^32.
    pub number: u32,
    /// Hash of the rank's rules and of all calls up to and including this one.
    pub history: u32,
    pub call: Signature,
}

impl CallId {
    /// The tag of the call's messages. Calls of different numbers have different tags while fewer than 65,536 are in
    /// flight. Calls of the same number with different histories share a tag with probability 1/65,536; a message of
    /// one would then match the other.
    pub fn tag(&self) -> u32 {
        self.number << 16 | self.history >> 16 ^ self.history & 0xffff
    }

    pub const BYTES: usize = 8 + Signature::BYTES;

    pub fn to_bytes(self) -> [u8; CallId::BYTES] {
        let mut bytes = [0; CallId::BYTES];
        bytes[..4].copy_from_slice(&self.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.history.to_le_bytes());
        bytes[8..].copy_from_slice(&self.call.to_bytes());
        bytes
    }

    pub fn from_bytes(bytes: &[u8; CallId::BYTES]) -> CallId {
        let [n0, n1, n2, n3, h0, h1, h2, h3, call @ ..] = bytes;
        CallId {
            number: u32::from_le_bytes([*n0, *n1, *n2, *n3]),
            history: u32::from_le_bytes([*h0, *h1, *h2, *h3]),
            call: Signature::from_bytes(call),
        }
    }
}

/// Number of recent calls that can still be compared with a call in which another rank waits.
const REMEMBERED: usize = 64;

/// The last [`REMEMBERED`] calls of this rank. One thread writes and other threads read without a lock: each entry is a
/// sequence lock whose key identifies the call that it holds.
pub(super) struct History([Entry; REMEMBERED]);

struct Entry {
    /// Call number (low half) and history (high half); or, while the entry is empty or being written, a number that
    /// belongs into the next entry.
    key: AtomicU64,
    call: [AtomicU64; 2],
}

/// Key of an empty entry: a number that maps to the next entry, so that no lookup matches it.
fn none(index: usize) -> u64 {
    index as u64 + 1
}

impl Default for History {
    fn default() -> Self {
        let entry = |index| Entry { key: AtomicU64::new(none(index)), call: Default::default() };
        History(std::array::from_fn(entry))
    }
}

impl History {
    /// Records a call. Only one thread may call this at a time.
    #[inline]
    pub fn note(&self, made: CallId) {
        let index = made.number as usize % REMEMBERED;
        let Entry { key, call } = &self.0[index];
        key.store(none(index), Relaxed);
        // A reader that sees a word of the new call also sees the entry marked empty.
        fence(Release);
        for (word, half) in call.iter().zip(made.call.words()) {
            word.store(half, Relaxed);
        }
        key.store(u64::from(made.history) << 32 | u64::from(made.number), Release);
    }

    /// The call of this number, if it was made and is still remembered.
    pub fn find(&self, number: u32) -> Option<CallId> {
        let Entry { key, call } = &self.0[number as usize % REMEMBERED];
        let before = key.load(Acquire);
        let call = Signature::of_words([0, 1].map(|half| call[half].load(Relaxed)));
        fence(Acquire);
        let same = key.load(Relaxed) == before && before as u32 == number;
        same.then_some(CallId { number, history: (before >> 32) as u32, call })
    }

    /// True if the call of this number was made and is no longer remembered.
    pub fn has_forgotten(&self, number: u32) -> bool {
        let index = number as usize % REMEMBERED;
        let later = self.0[index].key.load(Acquire) as u32;
        later as usize % REMEMBERED == index && later != number && later.wrapping_sub(number) < 1 << 31
    }
}

#[cfg(test)]
mod tests {
    use super::super::signature::Kind;
    use super::*;

    fn made(number: u32) -> CallId {
        let len = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize;
        CallId { number, history: !number, call: Signature::of::<u64>(Kind::Scan, len).on_grid(number) }
    }

    #[test]
    fn recent_calls_are_found_and_older_forgotten() {
        let history = History::default();
        assert!((0..200).all(|number| history.find(number).is_none() && !history.has_forgotten(number)));
        for number in (u32::MAX - 100..=u32::MAX).chain(0..100) {
            history.note(made(number));
            assert_eq!(history.find(number), Some(made(number)));
            assert_eq!(history.find(number.wrapping_add(1)), None);
        }
        let found = (0..200).filter_map(|number| history.find(number));
        assert!(found.eq((36..100).map(made)));
        assert!((0..36).chain(u32::MAX - 100..=u32::MAX).all(|number| history.has_forgotten(number)));
        assert!((36..500).all(|number| !history.has_forgotten(number)));
    }

    /// A reader never sees a mix of two calls.
    #[test]
    fn concurrent_reader_sees_no_torn_call() {
        let (history, newest) = (History::default(), AtomicU64::new(0));
        let rounds = if cfg!(miri) { 300 } else { 300_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    // All calls map to the same entry.
                    history.note(made((round % 1000) as u32 * REMEMBERED as u32));
                    newest.store(round, Relaxed);
                }
            });
            while newest.load(Relaxed) < rounds {
                let number = (newest.load(Relaxed) % 1000) as u32 * REMEMBERED as u32;
                assert!(history.find(number).is_none_or(|found| found == made(number)), "{number}");
            }
        });
    }
}
