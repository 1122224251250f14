//! The blocks of memory that a process has of a job: its ranks' own, and those of others that are mapped here.

use crate::memory::{Memory, View};
use foldhash::fast::RandomState;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The blocks, by their tags, and by where they begin.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_tag: HashMap<u64, Block, RandomState>,
    /// Those of this process's ranks: where the bytes begin, {tag, descriptor by which others may map it}.
    own: BTreeMap<usize, (u64, Option<u32>)>,
    /// Buffers of others, and by which process number they are known: mapped here until their owner gives them up, or has died.
    kept: HashMap<u64, (u64, View), RandomState>,
}

struct Block {
    memory: Weak<Memory>,
    /// Where it begins, if it is of a rank of this process.
    own: Option<usize>,
}

/// What leads others to a place in a block of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub tag: u64,
    pub fd: Option<u32>,
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A block that a rank of this process has made; others may map it by a descriptor until it is [removed](Self::remove).
    pub fn add(&self, tag: u64, memory: &Arc<Memory>, fd: Option<u32>) {
        let mut known = self.lock();
        let start = memory.start().as_ptr().addr();
        known.by_tag.insert(tag, Block { memory: Arc::downgrade(memory), own: Some(start) });
        known.own.insert(start, (tag, fd));
    }

    /// The block of a rank of this process is found no more.
    pub fn remove(&self, tag: u64) {
        let mut known = self.lock();
        if let Some(Block { own: Some(start), .. }) = known.by_tag.remove(&tag) {
            known.own.remove(&start);
        }
    }

    /// Lists a block of another process that is mapped here. The entry goes when the last view of the block goes.
    pub fn note(self: &Arc<Self>, tag: u64, mut memory: Memory) -> Arc<Memory> {
        memory.noted = Some(Noted { blocks: Arc::downgrade(self), tag });
        let memory = Arc::new(memory);
        self.lock().by_tag.insert(tag, Block { memory: Arc::downgrade(&memory), own: None });
        memory
    }

    /// As [`note`](Self::note), and keeps it mapped until its owner, by its process number, gives it up.
    pub fn keep(self: &Arc<Self>, owner: u64, tag: u64, memory: Memory) -> Arc<Memory> {
        self.sweep();
        let memory = self.note(tag, memory);
        let replaced = self.lock().kept.insert(tag, (owner, View::whole(&memory)));
        // Without the lock, which the drop of its last view takes.
        drop(replaced);
        memory
    }

    /// Unmaps what its owners have given up.
    pub fn sweep(&self) {
        self.unmap(|_, view| view.header().is_over());
    }

    /// Unmaps what is kept of a process that is gone, and can give up nothing.
    pub fn forget(&self, gone: u64) {
        self.unmap(|owner, _| owner == gone);
    }

    fn unmap(&self, which: impl Fn(u64, &View) -> bool) {
        let unmapped: Vec<_> = self.lock().kept.extract_if(|_, (owner, view)| which(*owner, view)).collect();
        // Without the lock, which the drop of a last view takes.
        drop(unmapped);
    }

    /// Removes the entry of a block whose last view is gone. Another thread may have mapped the block anew since: that
    /// entry stays.
    fn remove_dead(&self, tag: u64) {
        if let Entry::Occupied(entry) = self.lock().by_tag.entry(tag)
            && entry.get().memory.strong_count() == 0
        {
            entry.remove();
        }
    }

    /// The block of this tag, if it is here.
    pub fn get(&self, tag: u64) -> Option<Arc<Memory>> {
        self.lock().by_tag.get(&tag)?.memory.upgrade()
    }

    /// The block of this tag, if it is of a rank of this process.
    pub fn of_this_process(&self, tag: u64) -> Option<Arc<Memory>> {
        self.lock().by_tag.get(&tag).filter(|block| block.own.is_some())?.memory.upgrade()
    }

    /// The block of this process in which so many bytes at an address lie.
    pub fn containing(&self, address: usize, len: usize) -> Option<Found> {
        let known = self.lock();
        let (start, (tag, fd)) = known.own.range(..=address).next_back()?;
        let memory = known.by_tag.get(tag)?.memory.upgrade()?;
        let inside = address.checked_add(len)? <= start.checked_add(memory.len())?;
        inside.then_some(Found { tag: *tag, fd: *fd })
    }
}

/// The entry of a block of another process; dropped with the mapping.
pub(crate) struct Noted {
    blocks: Weak<Blocks>,
    tag: u64,
}

impl Drop for Noted {
    fn drop(&mut self) {
        if let Some(blocks) = self.blocks.upgrade() {
            blocks.remove_dead(self.tag);
        }
    }
}

/// Takes a block out of the list of those that ranks of this process can attach to.
pub(crate) struct Forget {
    pub blocks: Arc<Blocks>,
    pub tag: u64,
}

impl std::fmt::Debug for Forget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block {:x}", self.tag)
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.blocks.remove(self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(tag: u64, bytes: usize) -> Arc<Memory> {
        Arc::new(Memory::heap(bytes, tag).unwrap())
    }

    #[test]
    fn a_place_is_found_in_its_block_and_nowhere_else() {
        let (blocks, one, two) = (Blocks::default(), block(1, 1000), block(2, 64));
        blocks.add(1, &one, None);
        blocks.add(2, &two, Some(7));
        let at = |memory: &Memory, offset: usize| memory.start().as_ptr().addr() + offset;
        assert_eq!(blocks.containing(at(&one, 0), 1000), Some(Found { tag: 1, fd: None }));
        assert_eq!(blocks.containing(at(&one, 999), 1), Some(Found { tag: 1, fd: None }));
        assert_eq!(blocks.containing(at(&two, 10), 54), Some(Found { tag: 2, fd: Some(7) }));
        assert_eq!(blocks.containing(at(&two, 10), 55), None, "it ends beyond");
        assert_eq!(blocks.containing(at(&one, 1), usize::MAX), None);
        assert_eq!(blocks.containing(1, 1), None);
        blocks.remove(1);
        assert_eq!(blocks.containing(at(&one, 0), 1), None);
        drop(two);
        assert!(blocks.get(2).is_none() && blocks.get(1).is_none());
    }

    #[test]
    fn what_is_kept_stays_until_its_owner_gives_it_up() {
        let blocks = Arc::<Blocks>::default();
        let memory = blocks.keep(1, 5, Memory::heap(64, 5).unwrap());
        let weak = Arc::downgrade(&memory);
        memory.header().give_up();
        drop(memory);
        assert!(weak.upgrade().is_some(), "until somebody looks");
        assert!(blocks.get(5).is_some() && blocks.of_this_process(5).is_none());
        blocks.sweep();
        assert!(weak.upgrade().is_none() && blocks.get(5).is_none());
    }

    #[test]
    fn what_is_kept_of_a_rank_that_is_gone_is_given_up() {
        let blocks = Arc::<Blocks>::default();
        for (owner, tag) in [(1, 6), (2, 7)] {
            drop(blocks.keep(owner, tag, Memory::heap(64, tag).unwrap()));
        }
        blocks.forget(1);
        assert!(blocks.get(6).is_none() && blocks.get(7).is_some());
    }

    #[test]
    fn noted_block_is_listed_until_its_last_view_goes() {
        let blocks = Arc::<Blocks>::default();
        let listed = || blocks.lock().by_tag.len();
        let first = blocks.note(8, Memory::heap(64, 8).unwrap());
        let view = View::whole(&first);
        drop(first);
        assert_eq!(listed(), 1, "a view is left");
        // The block is mapped a second time before the first mapping goes.
        let second = blocks.note(8, Memory::heap(64, 8).unwrap());
        drop(view);
        assert!(blocks.get(8).is_some(), "the entry is of the second mapping");
        drop(second);
        assert_eq!(listed(), 0);
    }
}
