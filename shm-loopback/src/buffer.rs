//! Memory of one rank that others map for long messages, so that the kernel need not copy.

use crate::blocks::Blocks;
use crate::loopback::Membership;
use crate::memory::{HEADER, MemoryBlock};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use transom_windows::FabricError;

/// Zeroed bytes that begin on a page. Other ranks unmap them some time after this is dropped.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    memory: Arc<MemoryBlock>,
    tag: u64,
    blocks: Arc<Blocks>,
    /// The descriptor by which other ranks map it; `None` where they are threads.
    _fd: Option<OwnedFd>,
}

// SAFETY: plain bytes that only the owner of this value uses, except for messages in flight, to which it has lent them.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// Bytes from the end of a block's header to the next page.
const TO_PAGE: usize = 4096 - HEADER;

impl Buffer {
    /// Allocates `len` bytes.
    pub fn new(job: &Membership, len: usize) -> Result<Buffer, FabricError> {
        let (memory, key, fd) = job.block(len.saturating_add(TO_PAGE))?;
        let blocks = job.blocks.clone();
        blocks.add(key.tag, &memory, fd.as_ref().map(|fd| fd.as_raw_fd() as u32));
        // SAFETY: within the block, which is longer by this many bytes.
        let start = unsafe { memory.start().add(TO_PAGE) };
        Ok(Buffer { start, len, memory, tag: key.tag, blocks, _fd: fd })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the block, initialised; peers write there only while a message is received into exclusively
        // borrowed bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; peers read there only while a message is sent from borrowed bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.blocks.remove(self.tag);
        self.memory.header().give_up();
    }
}
