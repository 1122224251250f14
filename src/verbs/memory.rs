//! Registered memory: what the adapter may reach by itself, and with which rights.

use super::VerbsError;
use super::device::{Device, last_error};
use ibverbs_sys::*;
use rustix::process::{Resource, getrlimit};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What peers may do with memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rights {
    /// Nothing: the adapter brings results of this rank's own operations there.
    Local,
    /// Everything that a window promises.
    Window,
}

impl Rights {
    fn flags(self) -> ibv_access_flags {
        let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        match self {
            Rights::Local => local,
            Rights::Window => local | window_flags(),
        }
    }
}

/// What a queue pair lets its peer do.
pub(super) fn window_flags() -> ibv_access_flags {
    ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC
}

/// A registration. Taken back when dropped: whoever accesses the memory then is refused by the adapter.
pub(super) struct Registered {
    region: NonNull<ibv_mr>,
    pub address: u64,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The memory must stay where it is, and be accessed by nobody as if it were private, until this is dropped.
    pub unsafe fn new(
        device: &Arc<Device>,
        start: NonNull<u8>,
        bytes: usize,
        rights: Rights,
    ) -> Result<Self, VerbsError> {
        let access = rights.flags().0 as i32;
        // SAFETY: the domain is alive; the memory by the caller's word.
        let region =
            unsafe { (device.library.ibv_reg_mr)(device.domain.as_ptr(), start.as_ptr().cast(), bytes, access) };
        let region = NonNull::new(region).ok_or_else(|| refused(device, bytes, last_error()))?;
        device.registered.fetch_add(bytes, Relaxed);
        Ok(Registered { region, address: start.as_ptr().expose_provenance() as u64, device: device.clone() })
    }

    /// What names it in requests of this rank.
    pub fn local_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.lkey
    }

    /// What names it in requests of peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.rkey
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: alive until the next line.
        let bytes = unsafe { self.region.as_ref() }.length;
        self.device.registered.fetch_sub(bytes, Relaxed);
        // SAFETY: registered by `new`, once.
        unsafe { (self.device.library.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

#[cold]
fn refused(device: &Device, bytes: usize, source: io::Error) -> VerbsError {
    let limit = getrlimit(Resource::Memlock).current;
    let what = match limit {
        Some(limit) if source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => format!(
            "registering {bytes} bytes with RDMA device {} failed: the limit of locked memory is {} KiB (`ulimit -l`); \
             raise it in /etc/security/limits.conf (memlock), or by LimitMEMLOCK= of the service",
            device.name,
            limit / 1024
        ),
        _ => format!("registering {bytes} bytes with RDMA device {} failed", device.name),
    };
    VerbsError::system(what, source)
}

/// Zeroed memory of this rank alone and the adapter.
pub(super) struct Buffer {
    /// Taken back before the memory is freed.
    registered: ManuallyDrop<Registered>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: reached by raw copies only, by whoever was given the slot.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, VerbsError> {
        let layout = Layout::from_size_align(bytes.max(1).next_multiple_of(4096), 4096).expect("buffers are small");
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let start = start.ok_or_else(|| VerbsError::system("buffers", io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: freed by `drop`, after the registration; accessed by raw copies.
        match unsafe { Registered::new(device, start, layout.size(), Rights::Local) } {
            Ok(registered) => Ok(Buffer { registered: ManuallyDrop::new(registered), start, layout }),
            Err(error) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// The memory at `offset`, as the adapter names it.
    pub fn piece(&self, offset: usize, len: usize) -> ibv_sge {
        assert!(offset + len <= self.layout.size(), "a piece of its buffer");
        ibv_sge { addr: self.registered.address + offset as u64, length: len as u32, lkey: self.registered.local_key() }
    }

    /// Copies there.
    pub fn write(&self, offset: usize, source: &[u8]) {
        assert!(offset + source.len() <= self.layout.size(), "a piece of its buffer");
        // SAFETY: inside; whoever has the slot has it alone, and nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.add(offset).as_ptr(), source.len()) };
    }

    /// Copies from there, what the adapter brought.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.layout.size(), "a piece of its buffer");
        // The completion was seen by a function that the compiler does not know.
        // SAFETY: inside; whoever has the slot has it alone, and nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset).as_ptr(), into.as_mut_ptr(), into.len()) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: once each, in this order; the layout is that of the allocation.
        unsafe {
            ManuallyDrop::drop(&mut self.registered);
            dealloc(self.start.as_ptr(), self.layout);
        }
    }
}

/// Pieces of registered memory, all of one size, that are lent for as long as an operation is under way.
pub(super) struct Slots {
    device: Arc<Device>,
    buffers: Vec<Buffer>,
    free: Vec<u32>,
    bytes: usize,
    /// In each buffer.
    each: usize,
}

/// Which one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(u32);

impl Slot {
    pub fn number(self) -> u32 {
        self.0
    }

    pub fn numbered(number: u32) -> Self {
        Slot(number)
    }
}

impl Slots {
    pub fn new(device: &Arc<Device>, bytes: usize, each: usize) -> Self {
        Slots { device: device.clone(), buffers: Vec::new(), free: Vec::new(), bytes, each }
    }

    /// One that is free, if there is one without more memory.
    pub fn take_free(&mut self) -> Result<Option<Slot>, VerbsError> {
        if self.buffers.is_empty() {
            return self.take().map(Some);
        }
        Ok(self.free.pop().map(Slot))
    }

    /// One that is free; of more memory if need be.
    pub fn take(&mut self) -> Result<Slot, VerbsError> {
        if self.free.is_empty() {
            self.buffers.push(Buffer::new(&self.device, self.bytes * self.each)?);
            let first = (self.buffers.len() - 1) * self.each;
            self.free.extend((first..first + self.each).rev().map(|slot| slot as u32));
        }
        Ok(Slot(self.free.pop().expect("just extended")))
    }

    pub fn give(&mut self, slot: Slot) {
        self.free.push(slot.0);
    }

    fn place(&self, slot: Slot) -> (&Buffer, usize) {
        (&self.buffers[slot.0 as usize / self.each], slot.0 as usize % self.each * self.bytes)
    }

    pub fn piece(&self, slot: Slot, len: usize) -> ibv_sge {
        let (buffer, offset) = self.place(slot);
        assert!(len <= self.bytes, "a piece of its slot");
        buffer.piece(offset, len)
    }

    pub fn write(&self, slot: Slot, source: &[u8]) {
        let (buffer, offset) = self.place(slot);
        assert!(source.len() <= self.bytes, "a piece of its slot");
        buffer.write(offset, source);
    }

    pub fn read(&self, slot: Slot, into: &mut [u8]) {
        let (buffer, offset) = self.place(slot);
        assert!(into.len() <= self.bytes, "a piece of its slot");
        buffer.read(offset, into);
    }
}
