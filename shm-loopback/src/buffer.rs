//! Memory of one rank that others map when a long message comes from it or goes to it, instead of having the kernel copy.

use crate::blocks::Blocks;
use crate::loopback::Membership;
use crate::memory::{HEADER, Memory};
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use transom_windows::FabricError;

/// Zeroed bytes from the beginning of a page on. Others unmap them some time after this is dropped.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
    memory: Arc<Memory>,
    tag: u64,
    blocks: Arc<Blocks>,
    /// By which others map it; none where they are threads.
    _fd: Option<OwnedFd>,
}

// SAFETY: plain bytes, which the owner of this alone uses, but for messages that are under way, which it has lent them to.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

/// From the end of a block's header to the next page.
const TO_PAGE: usize = 4096 - HEADER;

impl Buffer {
    /// So many bytes.
    pub fn new(job: &Membership, len: usize) -> Result<Buffer, FabricError> {
        let (memory, key, fd) = job.block(len.saturating_add(TO_PAGE))?;
        let blocks = job.blocks.clone();
        blocks.add(key.tag, &memory, fd.as_ref().map(|fd| fd.as_raw_fd() as u32));
        // SAFETY: within the block, which has so many bytes more.
        let start = unsafe { memory.start().add(TO_PAGE) };
        Ok(Buffer { start, len, memory, tag: key.tag, blocks, _fd: fd })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the block, initialised; peers write there only while a message is received into what was borrowed
        // exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; peers read there only while a message is sent from what was borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.blocks.remove(self.tag);
        self.memory.header().give_up();
    }
}
