//! The blocks of memory of a job that a process knows: its ranks' own, and mapped ones of other processes.

use crate::memory::{MemoryBlock, View};
use foldhash::fast::RandomState;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The known blocks, by tag and by address.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_tag: HashMap<u64, ListedBlock, RandomState>,
    /// Blocks of this process's ranks, by the address of their bytes: {tag, descriptor by which others may map it}.
    own: BTreeMap<usize, (u64, Option<u32>)>,
    /// Buffers of other processes, by tag, with the owner's process number. They stay mapped until the owner gives them
    /// up, or has died.
    kept: HashMap<u64, (u64, View), RandomState>,
}

struct ListedBlock {
    memory: Weak<MemoryBlock>,
    /// The address of its bytes, if the block belongs to a rank of this process.
    own: Option<usize>,
}

/// The identification of a block of this process, for other ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub tag: u64,
    pub fd: Option<u32>,
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds a block that a rank of this process has made. Other ranks may map it by a descriptor until it is
    /// [removed](Self::remove).
    pub fn add(&self, tag: u64, memory: &Arc<MemoryBlock>, fd: Option<u32>) {
        let mut known = self.lock();
        let start = memory.start().as_ptr().addr();
        known.by_tag.insert(tag, ListedBlock { memory: Arc::downgrade(memory), own: Some(start) });
        known.own.insert(start, (tag, fd));
    }

    /// Removes a block of a rank of this process.
    pub fn remove(&self, tag: u64) {
        let mut known = self.lock();
        if let Some(ListedBlock { own: Some(start), .. }) = known.by_tag.remove(&tag) {
            known.own.remove(&start);
        }
    }

    /// Adds a block of another process that is mapped here. The entry is removed with the last view of the block.
    pub fn note(self: &Arc<Self>, tag: u64, mut memory: MemoryBlock) -> Arc<MemoryBlock> {
        memory.noted = Some(Noted { blocks: Arc::downgrade(self), tag });
        let memory = Arc::new(memory);
        self.lock().by_tag.insert(tag, ListedBlock { memory: Arc::downgrade(&memory), own: None });
        memory
    }

    /// [`note`](Self::note) for a block that stays mapped until its owner, identified by process number, gives it up.
    pub fn keep(self: &Arc<Self>, owner: u64, tag: u64, memory: MemoryBlock) -> Arc<MemoryBlock> {
        self.sweep();
        let memory = self.note(tag, memory);
        let replaced = self.lock().kept.insert(tag, (owner, View::whole(&memory)));
        // Dropped without holding the lock, which the drop of its last view takes.
        drop(replaced);
        memory
    }

    /// Unmaps the blocks that their owners have given up.
    pub fn sweep(&self) {
        self.unmap(|_, view| view.header().is_over());
    }

    /// Unmaps the blocks of a process that is gone, and so cannot give them up.
    pub fn forget(&self, gone: u64) {
        self.unmap(|owner, _| owner == gone);
    }

    fn unmap(&self, which: impl Fn(u64, &View) -> bool) {
        let unmapped: Vec<_> = self.lock().kept.extract_if(|_, (owner, view)| which(*owner, view)).collect();
        // Dropped without holding the lock, which the drop of a last view takes.
        drop(unmapped);
    }

    /// Removes the entry of a block whose last view is gone. If another thread has mapped the block anew since, its
    /// entry stays.
    fn remove_dead(&self, tag: u64) {
        if let Entry::Occupied(entry) = self.lock().by_tag.entry(tag)
            && entry.get().memory.strong_count() == 0
        {
            entry.remove();
        }
    }

    /// The block with this tag, if it is mapped here.
    pub fn get(&self, tag: u64) -> Option<Arc<MemoryBlock>> {
        self.lock().by_tag.get(&tag)?.memory.upgrade()
    }

    /// The block with this tag, if it belongs to a rank of this process.
    pub fn of_this_process(&self, tag: u64) -> Option<Arc<MemoryBlock>> {
        self.lock().by_tag.get(&tag).filter(|block| block.own.is_some())?.memory.upgrade()
    }

    /// The block of this process that contains `len` bytes at an address.
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

/// Removes a block, when dropped, from those that ranks of this process can attach to.
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

    fn block(tag: u64, bytes: usize) -> Arc<MemoryBlock> {
        Arc::new(MemoryBlock::heap(bytes, tag).unwrap())
    }

    #[test]
    fn address_is_found_only_in_its_block() {
        let (blocks, one, two) = (Blocks::default(), block(1, 1000), block(2, 64));
        blocks.add(1, &one, None);
        blocks.add(2, &two, Some(7));
        let at = |memory: &MemoryBlock, offset: usize| memory.start().as_ptr().addr() + offset;
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
    fn kept_block_stays_until_its_owner_frees_it() {
        let blocks = Arc::<Blocks>::default();
        let memory = blocks.keep(1, 5, MemoryBlock::heap(64, 5).unwrap());
        let weak = Arc::downgrade(&memory);
        memory.header().give_up();
        drop(memory);
        assert!(weak.upgrade().is_some(), "until the next sweep");
        assert!(blocks.get(5).is_some() && blocks.of_this_process(5).is_none());
        blocks.sweep();
        assert!(weak.upgrade().is_none() && blocks.get(5).is_none());
    }

    #[test]
    fn kept_blocks_of_a_lost_rank_are_freed() {
        let blocks = Arc::<Blocks>::default();
        for (owner, tag) in [(1, 6), (2, 7)] {
            drop(blocks.keep(owner, tag, MemoryBlock::heap(64, tag).unwrap()));
        }
        blocks.forget(1);
        assert!(blocks.get(6).is_none() && blocks.get(7).is_some());
    }

    #[test]
    fn noted_block_is_listed_until_its_last_view_goes() {
        let blocks = Arc::<Blocks>::default();
        let listed = || blocks.lock().by_tag.len();
        let first = blocks.note(8, MemoryBlock::heap(64, 8).unwrap());
        let view = View::whole(&first);
        drop(first);
        assert_eq!(listed(), 1, "a view is left");
        // The block is mapped a second time before the first mapping is dropped.
        let second = blocks.note(8, MemoryBlock::heap(64, 8).unwrap());
        drop(view);
        assert!(blocks.get(8).is_some(), "the entry is of the second mapping");
        drop(second);
        assert_eq!(listed(), 0);
    }
}
