//! The provider: a remote operation is the origin's own load, store or instruction on the target's memory.

use crate::buffer::Buffer;
use crate::cma::{self, CrossMemory};
use crate::key::{CmaKey, InBlock, Key, fresh_tag};
use crate::loopback::{Loopback, Membership};
use crate::memory::{MemoryBlock, View, Word};
use crate::{copy, limit, system, words};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst, fence};
use transom_locks::Rank;
use transom_windows::{
    BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UpdateInPlace, UserMemory, Wait, Wake,
};

/// Bytes of a page, the unit of a mapping.
const PAGE: usize = 4096;

/// Memory of this rank that others access by its key.
pub struct Region {
    view: View,
    tag: u64,
    owner: Arc<Membership>,
    /// Open as long as other ranks may attach by the key.
    fd: Option<OwnedFd>,
}

impl Region {
    /// The memory itself.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Declares that from now on an adapter executes the atomics on this memory, for all ranks. In debug builds a
    /// processor's atomics there are errors then ([`FabricError::Misuse`]).
    pub fn leave_atomics_to_adapter(&self) {
        if self.tag != 0 {
            self.view.header().adapter.store(1, SeqCst);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.owner.blocks.remove(self.tag);
        self.owner.regions.fetch_sub(1, SeqCst);
    }
}

impl Loopback {
    #[cold]
    #[inline(never)]
    fn put_cma(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.by_number(to, offset, source.len(), |memory| memory.write(offset, source))
    }

    #[cold]
    #[inline(never)]
    fn get_cma(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.by_number(from, offset, into.len(), |memory| memory.read(offset, into))
    }

    /// Accesses the memory of another process behind a view without bytes.
    fn by_number(
        &self,
        view: &View,
        offset: usize,
        len: usize,
        act: impl FnOnce(&CrossMemory) -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        let memory = view.other_process().ok_or(FabricError::OutOfBounds { offset, len, size: view.len() })?;
        self.0.control.reaching(memory.rank, || act(memory))
    }
}

impl Membership {
    /// Creates zeroed memory that other ranks can map by its key; processes can while the descriptor is open.
    pub(crate) fn block(&self, bytes: usize) -> Result<(Arc<MemoryBlock>, Key, Option<OwnedFd>), FabricError> {
        let tag = fresh_tag();
        let (memory, fd) = if self.across_processes {
            let (memory, fd) = MemoryBlock::create(bytes, tag)?;
            (memory, Some(fd))
        } else {
            (MemoryBlock::heap(bytes, tag)?, None)
        };
        let memory = Arc::new(memory);
        self.blocks.add(tag, &memory, None);
        let number = fd.as_ref().map_or(0, |fd| fd.as_raw_fd() as u32);
        Ok((memory, Key { tag, pid: std::process::id(), fd: number }, fd))
    }

    /// The block that contains user memory, if all ranks can map it.
    fn block_of(&self, memory: &UserMemory) -> Option<InBlock> {
        let address = memory.start().as_ptr().addr();
        let found = self.blocks.containing(address, memory.bytes())?;
        // A rank that could not map it would access the memory in another way than the others.
        let fd = if self.across_processes { found.fd? } else { 0 };
        let block = self.blocks.get(found.tag)?;
        let offset = (address - block.start().as_ptr().addr()) as u64;
        Some(InBlock { tag: found.tag, fd, block_bytes: block.len() as u64, offset })
    }

    /// Maps the part of a block of process `pid` that holds user memory.
    fn attach_in_block(&self, rank: Rank, pid: u32, part: InBlock, bytes: usize) -> Result<View, FabricError> {
        let InBlock { tag, fd, block_bytes, offset } = part;
        let outside = || {
            let why = format!("it names {bytes} bytes at offset {offset} of a block of {block_bytes} bytes");
            FabricError::BadKey { rank, why, source: None }
        };
        let [block_bytes, offset] =
            [block_bytes, offset].map(|number| usize::try_from(number).ok().filter(|&n| n <= isize::MAX as usize));
        let (block_bytes, offset) = block_bytes.zip(offset).ok_or_else(outside)?;
        let block = match self.blocks.get(tag) {
            Some(memory) if memory.len() == block_bytes => View::whole(&memory),
            _ => self.attach(rank, Key { tag, pid, fd }, block_bytes)?,
        };
        block.part(offset, bytes).ok_or_else(outside)
    }

    /// Maps the block of a key.
    pub(crate) fn attach(&self, rank: Rank, key: Key, bytes: usize) -> Result<View, FabricError> {
        let bad_key = |why, source| FabricError::BadKey { rank, why, source };
        let memory = match self.blocks.of_this_process(key.tag) {
            Some(memory) if memory.len() == bytes => memory,
            Some(memory) => {
                return Err(bad_key(format!("its block has {} bytes, expected {bytes}", memory.len()), None));
            }
            None if self.across_processes => {
                let opened = MemoryBlock::open_of(key.pid, key.fd, Some(bytes), key.tag);
                let memory = opened.map_err(|(why, source)| match source {
                    // The key is fine; a limit was reached.
                    Some(source) if limit(&source).is_some() => system(why, source),
                    source => bad_key(why, source),
                })?;
                self.blocks.note(key.tag, memory)
            }
            None => return Err(bad_key("its memory is no longer registered".into(), None)),
        };
        Ok(View::whole(&memory))
    }
}

impl Fabric for Loopback {
    type Region = Region;
    type Remote = View;
    type Word = Word;
    type Pending = u64;
    /// An operation that was complete when it started.
    type Transfer = BoxBytes;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        let (memory, key, fd) = self.0.block(bytes)?;
        let owner = self.0.clone();
        owner.regions.fetch_add(1, SeqCst);
        Ok((Region { view: View::whole(&memory), tag: key.tag, owner, fd }, key.to_bytes()))
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        let block = self.0.block_of(memory);
        if block.is_none() && self.0.across_processes && self.size() > 1 {
            cma::admit();
        }
        let start = memory.start().as_ptr().expose_provenance() as u64;
        let key = CmaKey { pid: std::process::id(), start, block };
        self.0.regions.fetch_add(1, SeqCst);
        Ok((Region { view: View::own(memory), tag: 0, owner: self.0.clone(), fd: None }, key.to_bytes()))
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        let bad_key = |why| FabricError::BadKey { rank, why, source: None };
        let key = CmaKey::from_bytes(key).ok_or_else(|| bad_key(format!("a key of {} bytes", key.len())))?;
        let CmaKey { pid, start, block } = key;
        if rank >= self.size() || self.0.control.process(rank) != u64::from(pid) {
            return Err(bad_key(format!("it names memory of process {pid}, which is not the process of that rank")));
        }
        if i32::try_from(pid).is_err() || pid == 0 || start.checked_add(bytes as u64).is_none() {
            return Err(bad_key(format!(
                "it names {bytes} bytes at {start:#x} of process {pid}, which is not a valid range"
            )));
        }
        match block {
            Some(part) => self.0.attach_in_block(rank, pid, part, bytes),
            None => Ok(View::whole(&Arc::new(MemoryBlock::of_other_process(CrossMemory { rank, pid, start, bytes })))),
        }
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        let wrong = || FabricError::BadKey { rank, why: format!("a key of {} bytes", key.len()), source: None };
        self.0.attach(rank, Key::from_bytes(key).ok_or_else(wrong)?, bytes)
    }

    #[inline(always)]
    fn put(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        let Some(shared) = to.address(offset, source.len()) else { return self.put_cma(to, offset, source) };
        // SAFETY: inside the view, as just checked; views are accessed only by atomics and `copy`.
        unsafe { copy::to_shared(shared, source) };
        Ok(())
    }

    #[inline(always)]
    fn get(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        let Some(shared) = from.address(offset, into.len()) else { return self.get_cma(from, offset, into) };
        // SAFETY: as for `put`.
        unsafe { copy::from_shared(shared, into) };
        Ok(())
    }

    fn start_put(&self, to: &View, offset: usize, source: BoxBytes) -> Result<BoxBytes, FabricError> {
        self.put(to, offset, &source).map(|()| source)
    }

    fn start_get(&self, from: &View, offset: usize, mut into: BoxBytes) -> Result<BoxBytes, FabricError> {
        self.get(from, offset, &mut into).map(|()| into)
    }

    fn test(&self, _: &mut BoxBytes) -> Result<bool, FabricError> {
        Ok(true)
    }

    fn finish_moving(&self, moving: BoxBytes) -> Result<BoxBytes, FabricError> {
        Ok(moving)
    }

    /// A block that begins on a page: other ranks map it, for long messages and for a window on the buffer. A short
    /// buffer is plain memory if no block is available, for example because no descriptor is left.
    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        if bytes < PAGE || self.size() == 1 {
            return BufferMemory::plain(bytes);
        }
        match Buffer::new(&self.0, bytes) {
            // SAFETY: bytes of a block, which stays mapped at its address.
            Ok(block) => Ok(unsafe { BufferMemory::of(block) }),
            Err(_) if bytes < crate::messages::BOTH_COPY_FROM => BufferMemory::plain(bytes),
            Err(error) => Err(error),
        }
    }

    fn is_shared(&self, at: &View) -> bool {
        at.other_process().is_none()
    }

    /// Closes the descriptor; mappings stay.
    fn close(&self, region: &mut Region) {
        region.fd = None;
    }

    #[inline(always)]
    fn start_cas(&self, at: &View, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        words::cas(at, offset, expected, new, wake)
    }

    #[inline(always)]
    fn start_add(&self, at: &View, offset: usize, delta: u64, wake: Wake) -> Result<u64, FabricError> {
        words::add(at, offset, delta, wake)
    }

    #[inline(always)]
    fn read_word(&self, at: &View, offset: usize) -> Result<u64, FabricError> {
        words::read(at, offset)
    }

    #[inline(always)]
    fn words<'r>(&self, at: &'r View, offset: usize, len: usize) -> Option<&'r [AtomicU64]> {
        at.own_words(offset, len)
    }

    fn find_word(&self, at: &View, offset: usize) -> Option<Word> {
        at.find_word(offset)
    }

    fn change_blocks(&self, at: &View, offset: usize, blocks: usize, change: impl UpdateInPlace) -> bool {
        match blocks.checked_mul(64).and_then(|bytes| at.address(offset, bytes)) {
            // SAFETY: inside the view, as just checked; views are accessed only by atomics and `copy`.
            Some(shared) => unsafe { copy::change_blocks(shared, blocks, change) },
            None => false,
        }
    }

    #[inline(always)]
    fn one_word<'r>(&self, at: &'r View, offset: usize) -> Option<&'r AtomicU64> {
        at.one_own_word(offset)
    }

    #[inline(always)]
    fn finish(&self, pending: u64) -> Result<u64, FabricError> {
        Ok(pending)
    }

    #[inline(always)]
    fn notify(&self, at: &View, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        words::notify(at, offset, value, wake)
    }

    #[inline(always)]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        words::read(&on.view, offset)
    }

    #[inline(always)]
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        self.watch(&on.view, wait, look)
    }

    fn after_empty_poll(&self) {
        if let Some(turning) = self.0.progress.get() {
            turning.try_progress();
        }
        if self.0.control.is_oversubscribed() {
            transom_windows::after_empty_poll();
        }
    }

    /// False where ranks share cores. A releaser makes its next request once its successor has acknowledged the
    /// hand-over. If the successor has to wait for a core, which may take long, other ranks get the lock more often.
    #[inline]
    fn watches(&self) -> bool {
        !self.0.control.is_oversubscribed()
    }

    /// A rank may sleep on the event count of any block: a rank that changes a word there notifies it.
    #[inline(always)]
    fn watch<R>(
        &self,
        at: &View,
        wait: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        // The result is usually there already.
        if let Some(found) = look()? {
            return Ok(found);
        }
        let Membership { rank, control, progress, .. } = &*self.0;
        let check = || control.check_peers(*rank, wait.awaited);
        words::wait(at, wait, control.is_oversubscribed(), progress, look, check)
    }

    #[inline(always)]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        on.view.atomics(offset, len)
    }

    #[inline(always)]
    fn bytes<'r>(&self, at: &'r View, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        at.atomics(offset, len)
    }

    #[inline(always)]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.get(&from.view, offset, into)
    }

    #[inline(always)]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.put(&to.view, offset, source)
    }

    /// Stores become visible by themselves, in order; the fence waits until they have.
    #[inline(always)]
    fn flush(&self, _: &View) -> Result<(), FabricError> {
        fence(SeqCst);
        Ok(())
    }

    #[inline(always)]
    fn flush_all<'r>(&self, _: impl Iterator<Item = &'r View> + Clone) -> Result<(), FabricError> {
        fence(SeqCst);
        Ok(())
    }

    /// Every verb is at least a release operation, so that nothing is left to [`order`](Self::order).
    #[inline(always)]
    fn orders(&self) -> bool {
        false
    }

    #[inline(always)]
    fn order(&self, _: &View) -> Result<(), FabricError> {
        Ok(())
    }
}
