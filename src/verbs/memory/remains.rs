//! Memory of windows that this rank has dropped or detached and others may not have let go of: neither is collective. It
//! stays registered until all who reached it have let go, which ranks tell each other when they make something together
//! (the next window, say) or pass the world's barrier, or until all have left the job.

use crate::verbs::sys::Registered;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use transom_locks::Rank;
use transom_shm_loopback::View;

/// Memory that nobody here needs.
pub(in crate::verbs) struct Deferred {
    /// Goes before the memory does.
    pub _registration: Registered,
    pub _memory: View,
}

/// What a rank of a team has reached and let go of, and what it keeps for others.
#[derive(Default)]
pub(in crate::verbs) struct Ledger(Mutex<Accounts>);

#[derive(Default)]
struct Accounts {
    /// Not yet told: by owner and address there, how often this rank has reached it, less how often it has let go.
    untold: HashMap<(u32, u64), i32>,
    /// Of this rank's own: how many others reach it, as far as they have told.
    reached: HashMap<u64, i64>,
    /// This rank's own that it does not need, and whether that was so before it last told.
    kept: HashMap<u64, (Deferred, bool)>,
}

const ENTRY: usize = 16;

impl Ledger {
    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Memory of a rank has come within reach (1), or is let go of (-1).
    pub fn count(&self, owner: Rank, address: u64, one: i32) {
        *self.accounts().untold.entry((owner as u32, address)).or_default() += one;
    }

    /// Keeps memory that this rank does not need while others may reach it.
    pub fn keep(&self, address: u64, kept: Deferred) {
        self.accounts().kept.insert(address, (kept, false));
    }

    /// What is still kept when nothing more will be told.
    pub fn close(&self) -> impl Iterator<Item = Deferred> + use<> {
        std::mem::take(&mut self.accounts().kept).into_values().map(|(memory, _)| memory)
    }

    /// All that is untold, before a message to all.
    pub fn tell(&self, message: &[u8]) -> Vec<u8> {
        let mut accounts = self.accounts();
        accounts.kept.values_mut().for_each(|(_, before)| *before = true);
        accounts.untold.retain(|_, count| *count != 0);
        let mut bytes = (accounts.untold.len() as u32).to_le_bytes().to_vec();
        for ((owner, address), count) in accounts.untold.drain() {
            bytes.extend(owner.to_le_bytes());
            bytes.extend(address.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes.extend(message);
        bytes
    }

    /// The message of one rank, of all that were sent together.
    pub fn hear<'b>(&self, me: Rank, bytes: &'b [u8]) -> Option<&'b [u8]> {
        let (count, rest) = bytes.split_first_chunk()?;
        let (entries, message) = rest.split_at_checked((u32::from_le_bytes(*count) as usize).checked_mul(ENTRY)?)?;
        let mut accounts = self.accounts();
        for entry in entries.as_chunks::<ENTRY>().0 {
            let (owner, rest) = entry.split_first_chunk::<4>()?;
            let (address, count) = rest.split_first_chunk::<8>()?;
            if u32::from_le_bytes(*owner) as usize == me {
                let reached = accounts.reached.entry(u64::from_le_bytes(*address)).or_default();
                *reached += i64::from(i32::from_le_bytes(count.try_into().ok()?));
            }
        }
        Some(message)
    }

    /// After the messages of all were heard: lets go of what none of them reaches. What was dropped before this rank told
    /// cannot have come within anybody's reach after they did: their telling waits for ours.
    pub fn settle(&self) {
        let Accounts { reached, kept, .. } = &mut *self.accounts();
        reached.retain(|_, count| *count != 0);
        kept.retain(|address, (_, before)| !*before || reached.contains_key(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let (mine, theirs) = (Ledger::default(), Ledger::default());
        theirs.count(1, 64, 1);
        theirs.count(1, 128, 1);
        theirs.count(1, 128, -1);
        theirs.count(0, 4096, 1);
        let told = theirs.tell(b"message");
        assert_eq!(mine.hear(1, &told), Some(&b"message"[..]));
        mine.settle();
        assert_eq!(mine.accounts().reached, HashMap::from([(64, 1)]));
        assert_eq!(theirs.tell(b"").len(), 4);
        for cut in 0..4 + 2 * ENTRY {
            assert_eq!(Ledger::default().hear(1, &told[..cut]), None);
        }
        theirs.count(1, 64, -1);
        mine.hear(1, &theirs.tell(b"")).unwrap();
        mine.settle();
        assert!(mine.accounts().reached.is_empty());
    }
}
