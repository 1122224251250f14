//! Shared memory: a memfd that is mapped by descriptor, or, for ranks that are threads, a heap block.
//!
//! A block begins with a header of one cache line: its identification, its size, and the event count on which its owner
//! sleeps. The bytes that ranks use follow. Nothing has a name in a file system, so nothing is left behind, whichever
//! process is killed at any time.

use crate::blocks::Noted;
use crate::cma::{CrossMemory, NO_ATOMICS};
use crate::event_count::Futex;
use crate::system;
use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, LazyLock};
use transom_locks::FoundWord;
use transom_windows::{FabricError, UserMemory};

/// Written at the beginning of every block; the last byte is the version of the layout.
const MAGIC: u64 = u64::from_be_bytes(*b"transom\x02");
/// Beginning of the name that the kernel shows for a memfd of this library.
const MEMFD: &str = "/memfd:transom";
/// Blocks of at least this many bytes are mapped, so that pages that are never used take no memory. An allocator would
/// zero all of an aligned block.
const LONG: usize = 64 << 10;

/// The first cache line of a block.
#[repr(C, align(64))]
pub(crate) struct Header {
    magic: AtomicU64,
    /// Identifies the block: a key must lead to the block it was made for.
    tag: AtomicU64,
    /// Bytes after the header.
    bytes: AtomicU64,
    /// The event count on which the block's rank sleeps until a word here changes.
    pub event: Futex,
    /// Nonzero if an adapter executes the atomics on words here, so that no processor may.
    pub adapter: AtomicU32,
    /// Nonzero once the owner no longer needs the block.
    over: AtomicU32,
    /// Address of the bytes in the owner's process.
    start: AtomicU64,
}

impl Header {
    /// Declares that the owner no longer needs the block.
    pub fn give_up(&self) {
        self.over.store(1, Relaxed);
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Relaxed) != 0
    }
}

/// Bytes of the header.
pub(crate) const HEADER: usize = size_of::<Header>();
const _: () = assert!(HEADER == 64 && align_of::<Header>() == 64);

/// A block, mapped or allocated here.
pub(crate) struct MemoryBlock {
    base: NonNull<u8>,
    /// Bytes after the header.
    bytes: usize,
    backing: Backing,
    /// The block's entry in the list of this process, for a block of another process.
    pub(crate) noted: Option<Noted>,
}

enum Backing {
    /// Unmapped when dropped.
    Mapped(MmapRaw),
    Heap(Layout),
    /// No bytes here: memory of another process.
    OtherProcess(CrossMemory),
    /// No bytes here: user memory.
    Lent,
}

// SAFETY: the block is accessed only through atomics and the copies of `copy`, from any thread; or in place, by a
// program that guarantees exclusive access.
unsafe impl Send for MemoryBlock {}
// SAFETY: as above.
unsafe impl Sync for MemoryBlock {}

impl MemoryBlock {
    /// Creates a zeroed memfd of `bytes` bytes after the header, with its size sealed, and maps it.
    pub fn create(bytes: usize, tag: u64) -> Result<(Self, OwnedFd), FabricError> {
        let all = with_header(bytes)?;
        let failed = |call: &str, source: rustix::io::Errno| {
            system(format!("{call} failed for {bytes} bytes of shared memory"), source.into())
        };
        let fd = rustix::fs::memfd_create("transom", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|errno| failed("memfd_create", errno))?;
        // Without this check the kernel would kill the process by SIGXFSZ.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| most < all as u64) {
            return Err(failed("ftruncate", rustix::io::Errno::FBIG));
        }
        rustix::fs::ftruncate(&fd, all as u64).map_err(|errno| failed("ftruncate", errno))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| failed("sealing", errno))?;
        let memory = Self::map(fd.as_fd(), all)?;
        memory.sign(tag);
        Ok((memory, fd))
    }

    /// Maps a descriptor that another process created. Its size must be sealed, and the header must be this library's.
    pub fn open(fd: BorrowedFd<'_>, bytes: Option<usize>, tag: u64) -> Result<Self, String> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(|errno| format!("it is not a memfd ({errno})"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err("its size is not sealed".into());
        }
        let size = rustix::fs::fstat(fd).map_err(|errno| format!("fstat: {errno}"))?.st_size as u64;
        let all = bytes.map_or(usize::try_from(size).ok(), |bytes| bytes.checked_add(HEADER));
        let all = all.filter(|&all| all as u64 == size && all >= HEADER).ok_or_else(|| match bytes {
            Some(bytes) => format!("it has {size} bytes, but {bytes} after a header of {HEADER} were announced"),
            None => format!("it has {size} bytes, fewer than its header of {HEADER}"),
        })?;
        let memory = Self::map(fd, all).map_err(|error| error.to_string())?;
        memory.check(tag)?;
        Ok(memory)
    }

    /// Opens descriptor `fd` of process `pid`, with a length of `bytes` if that is given. It is opened for reading or
    /// writing only once it is known to be a memfd of this library: the number may belong to another process.
    pub fn open_of(
        pid: u32,
        fd: u32,
        bytes: Option<usize>,
        tag: u64,
    ) -> Result<Self, (String, Option<std::io::Error>)> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let open = |at: &str, flags| {
            rustix::fs::open(at, flags | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| (format!("cannot open {path}"), Some(errno.into())))
        };
        let found = open(&path, OFlags::PATH)?;
        let here = format!("/proc/self/fd/{}", found.as_raw_fd());
        let name = std::fs::read_link(&here).unwrap_or_default();
        if !name.to_string_lossy().starts_with(MEMFD) {
            return Err((format!("{path} is {}, which is not memory of this library", name.display()), None));
        }
        let opened = open(&here, OFlags::RDWR)?;
        Self::open(opened.as_fd(), bytes, tag).map_err(|why| (format!("{path}: {why}"), None))
    }

    /// Creates a zeroed block for ranks that are threads of this process.
    pub fn heap(bytes: usize, tag: u64) -> Result<Self, FabricError> {
        let all = with_header(bytes)?;
        if all >= LONG && !cfg!(miri) {
            let map = MmapOptions::new().len(all).map_anon().map_err(|_| no_memory(bytes))?;
            let memory = Self::mapped(map.into(), all);
            memory.sign(tag);
            return Ok(memory);
        }
        let layout = Layout::from_size_align(all, align_of::<Header>()).map_err(|_| no_memory(bytes))?;
        // SAFETY: the layout is not empty, since it has a header.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| no_memory(bytes))?;
        let memory = MemoryBlock { base, bytes, backing: Backing::Heap(layout), noted: None };
        memory.sign(tag);
        Ok(memory)
    }

    /// Memory of another process that only system calls access.
    pub fn of_other_process(memory: CrossMemory) -> Self {
        MemoryBlock {
            base: NonNull::from(&NO_HEADER).cast(),
            bytes: 0,
            backing: Backing::OtherProcess(memory),
            noted: None,
        }
    }

    fn map(fd: BorrowedFd<'_>, all: usize) -> Result<Self, FabricError> {
        let map = MmapOptions::new()
            .len(all)
            .map_raw(fd.as_raw_fd())
            .map_err(|source| system(format!("mmap failed for {all} bytes of shared memory"), source))?;
        Ok(Self::mapped(map, all))
    }

    fn mapped(map: MmapRaw, all: usize) -> Self {
        let base = NonNull::new(map.as_mut_ptr()).expect("a mapping is not at address 0");
        MemoryBlock { base, bytes: all - HEADER, backing: Backing::Mapped(map), noted: None }
    }

    fn sign(&self, tag: u64) {
        self.header().start.store(self.start().as_ptr().expose_provenance() as u64, Relaxed);
        self.header().tag.store(tag, Relaxed);
        self.header().bytes.store(self.bytes as u64, Relaxed);
        self.header().magic.store(MAGIC, Relaxed);
    }

    fn check(&self, tag: u64) -> Result<(), String> {
        match self.header().magic.load(Relaxed) {
            MAGIC => {}
            magic if magic >> 8 == MAGIC >> 8 => {
                let (theirs, ours) = (magic as u8, MAGIC as u8);
                return Err(format!(
                    "its layout is version {theirs}, expected {ours}; build launcher and ranks with one version of transom"
                ));
            }
            magic => return Err(format!("it begins with {magic:#x}: it is not memory of this library")),
        }
        let (found, bytes) = (self.header().tag.load(Relaxed), self.header().bytes.load(Relaxed));
        if (found, bytes) == (tag, self.bytes as u64) {
            return Ok(());
        }
        Err(format!(
            "it is block {found:#x} of {bytes} bytes, but block {tag:#x} of {} bytes was announced",
            self.bytes
        ))
    }

    pub fn header(&self) -> &Header {
        // SAFETY: every block begins with a header, is aligned to it (a page, or the layout), and outlives `self`. The
        // header is all atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    /// Bytes after the header.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Translates an address of the owner's process to this process. Returns `None` unless all `len` bytes are inside.
    pub fn of_owner(&self, address: u64, len: usize) -> Option<*mut u8> {
        let offset = usize::try_from(address.checked_sub(self.header().start.load(Relaxed))?).ok()?;
        // SAFETY: inside the block, as just checked.
        (offset <= self.bytes && len <= self.bytes - offset).then(|| unsafe { self.start().add(offset).as_ptr() })
    }

    /// The first byte after the header.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the block has `HEADER + bytes` bytes.
        unsafe { self.base.add(HEADER) }
    }
}

/// The header of memory that has none: no rank sleeps on it.
static NO_HEADER: Header = Header {
    magic: AtomicU64::new(0),
    tag: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    event: Futex::new(),
    adapter: AtomicU32::new(0),
    over: AtomicU32::new(0),
    start: AtomicU64::new(0),
};

impl Drop for MemoryBlock {
    fn drop(&mut self) {
        if let Backing::Heap(layout) = self.backing {
            // SAFETY: allocated with this layout, and freed once.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}

/// The size of a block, unless this machine cannot have that much memory at all. Some systems promise any amount, and
/// kill a process that uses it; for an impossible block an error is better.
fn with_header(bytes: usize) -> Result<usize, FabricError> {
    let most = if cfg!(miri) {
        u64::MAX // no such system call there
    } else {
        let info = rustix::system::sysinfo();
        (info.totalram as u64 + info.totalswap as u64).saturating_mul(u64::from(info.mem_unit.max(1)))
    };
    bytes.checked_add(HEADER).filter(|&all| all as u64 <= most).ok_or_else(|| no_memory(bytes))
}

fn no_memory(bytes: usize) -> FabricError {
    let source = std::io::Error::from(std::io::ErrorKind::OutOfMemory);
    system(format!("cannot allocate {bytes} bytes for a window or buffer: this machine has too little memory"), source)
}

/// Part of a block, with the header whose event count its owner sleeps on. Operations work on views.
#[derive(Clone)]
pub struct View {
    start: NonNull<u8>,
    len: usize,
    /// Bytes whose words this processor may change: all, or none where an adapter executes the atomics.
    words: usize,
    header: NonNull<Header>,
    /// Keeps all of the above mapped.
    memory: Arc<MemoryBlock>,
}

// SAFETY: as for `MemoryBlock`.
unsafe impl Send for View {}
// SAFETY: as for `MemoryBlock`.
unsafe impl Sync for View {}

impl View {
    /// All bytes after the header.
    pub(crate) fn whole(memory: &Arc<MemoryBlock>) -> Self {
        let header = NonNull::from(memory.header());
        View { start: memory.start(), len: memory.len(), words: memory.len(), header, memory: memory.clone() }
    }

    /// A view of user memory.
    pub(crate) fn own(memory: &UserMemory) -> Self {
        View { start: memory.start(), len: memory.bytes(), words: memory.bytes(), ..View::empty().clone() }
    }

    /// A view of no bytes, for memory that is not mapped in this process: no access is [inside](Self::covers).
    pub fn empty() -> &'static Self {
        static EMPTY: LazyLock<View> = LazyLock::new(|| {
            let header = NonNull::from(&NO_HEADER);
            let none = MemoryBlock { base: header.cast(), bytes: 0, backing: Backing::Lent, noted: None };
            View { start: header.cast(), len: 0, words: 0, header, memory: Arc::new(none) }
        });
        &EMPTY
    }

    /// The same bytes, where an adapter executes the atomics: no word is [this processor's](Self::covers_word).
    pub fn without_words(self) -> Self {
        View { words: 0, ..self }
    }

    /// A view of `len` bytes from byte `offset` on, if they are inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let start = NonNull::new(self.address(offset, len)?)?;
        Some(View { start, len, words: len, ..self.clone() })
    }

    /// The memory of another process behind this view, if it has no memory here.
    #[cold]
    #[inline(never)]
    pub(crate) fn other_process(&self) -> Option<&CrossMemory> {
        match &self.memory.backing {
            Backing::OtherProcess(memory) => Some(memory),
            _ => None,
        }
    }

    /// A block within a block: its own header begins at byte `offset` (after the outer header), and `len` bytes follow
    /// it.
    ///
    /// # Panics
    /// If it is not within the outer block.
    pub(crate) fn nested(memory: &Arc<MemoryBlock>, offset: usize, len: usize) -> Self {
        assert!(
            offset.is_multiple_of(HEADER) && offset + HEADER + len <= memory.len(),
            "a nested block lies within its memory"
        );
        // SAFETY: within the outer block by the assertion, so aligned to a cache line, and all atomics.
        let (header, start) = unsafe { (memory.start().add(offset).cast(), memory.start().add(offset + HEADER)) };
        View { start, len, words: len, header, memory: memory.clone() }
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryBlock> {
        &self.memory
    }

    #[inline(always)]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: kept mapped by `memory`, all atomics.
        unsafe { self.header.as_ref() }
    }

    /// The address of `len` bytes from `offset` on, if they are inside.
    #[inline(always)]
    pub(crate) fn address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        // SAFETY: inside the view, as just checked.
        (offset <= self.len && len <= self.len - offset).then(|| unsafe { self.start.add(offset).as_ptr() })
    }

    /// Returns whether `len` bytes from `offset` on are mapped here.
    #[inline(always)]
    pub fn covers(&self, offset: usize, len: usize) -> bool {
        offset <= self.len && len <= self.len - offset
    }

    /// Returns whether the bytes at `offset` are a word that this processor may change.
    #[inline(always)]
    pub fn covers_word(&self, offset: usize) -> bool {
        self.one_own_word(offset).is_some()
    }

    /// [`address`](Self::address), if this processor may change the words there.
    #[inline(always)]
    fn words_address(&self, offset: usize, len: usize) -> Option<*mut u8> {
        // SAFETY: inside the view, as just checked: `words` is at most `len`.
        (offset <= self.words && len <= self.words - offset).then(|| unsafe { self.start.add(offset).as_ptr() })
    }

    /// The words of all whole cache lines; empty if user memory is not aligned.
    #[inline(always)]
    pub(crate) fn lines(&self) -> &[[AtomicU64; 8]] {
        let lines = if self.start.addr().get().is_multiple_of(8) { self.len / 64 } else { 0 };
        // SAFETY: inside and aligned, kept mapped by the view, and accessed as in `atomics`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), lines) }
    }

    /// Prefetches the cache line at `offset` for reading or writing: a hint, valid for any offset.
    #[inline(always)]
    pub(crate) fn prefetch<const TO_WRITE: bool>(&self, offset: usize) {
        crate::copy::prefetch::<TO_WRITE>(self.start.as_ptr().wrapping_add(offset));
    }

    /// Asks the kernel for the pages of a range now, at once, instead of one by one when they are first written. Does
    /// nothing before Linux 5.14.
    pub(crate) fn populate(&self, range: Range<usize>) {
        let (offset, len) = (range.start, range.len());
        if let Backing::Mapped(map) = &self.memory.backing
            && self.covers(offset, len)
        {
            let offset = self.start.addr().get() - map.as_ptr().addr() + offset;
            let _ = map.advise_range(Advice::PopulateWrite, offset, len);
        }
    }

    /// The bytes in place, if they are inside.
    #[inline(always)]
    pub(crate) fn atomics(&self, offset: usize, len: usize) -> Option<&[AtomicU8]> {
        // SAFETY: valid as long as the view, which keeps its memory; accessed only by atomics or by `copy`, or in place
        // by programs that guarantee exclusive access.
        self.address(offset, len).map(|start| unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }

    /// [`address`](Self::address), with an error if the bytes are not inside.
    #[inline(always)]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Result<*mut u8, FabricError> {
        match self.address(offset, len) {
            Some(address) => Ok(address),
            None => Err(FabricError::OutOfBounds { offset, len, size: self.len }),
        }
    }

    #[cold]
    fn no_word(&self, outside: FabricError) -> FabricError {
        if self.other_process().is_some() { NO_ATOMICS } else { outside }
    }

    /// The number of bytes mapped here.
    #[expect(clippy::len_without_is_empty, reason = "an empty view has no use")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first byte, for a provider that has an adapter access the memory; `None` if it is not mapped here. It stays
    /// mapped as long as a clone of the view.
    pub fn start(&self) -> Option<NonNull<u8>> {
        self.other_process().is_none().then_some(self.start)
    }

    /// The word at byte `offset`.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> Result<&AtomicU64, FabricError> {
        let at = self.bytes(offset, 8).map_err(|outside| self.no_word(outside))?;
        if !at.addr().is_multiple_of(8) {
            return Err(FabricError::Misaligned { offset });
        }
        // SAFETY: inside and aligned (a view starts at a cache line), and only accessed atomically.
        Ok(unsafe { &*at.cast::<AtomicU64>() })
    }

    /// The word at byte `offset`, for this processor to change. Debug builds refuse it where an adapter executes the
    /// atomics: atomics of the two are not atomic with respect to each other.
    #[inline(always)]
    pub(crate) fn own_word(&self, offset: usize) -> Result<&AtomicU64, FabricError> {
        match self.one_own_word(offset) {
            Some(word) => Ok(word),
            None => Err(self.word(offset).err().unwrap_or_else(adapter_word)),
        }
    }

    /// The word at byte `offset`, like [`own_words`](Self::own_words). Random accesses to distant words are faster with
    /// fewer instructions in between, so this has as few as possible.
    #[inline(always)]
    pub(crate) fn one_own_word(&self, offset: usize) -> Option<&AtomicU64> {
        if cfg!(debug_assertions) && self.header().adapter.load(std::sync::atomic::Ordering::Relaxed) != 0 {
            return None;
        }
        let at = self.words_address(offset, 8)?;
        if !at.addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: inside and aligned, kept mapped by the view, and accessed as in `atomics`.
        Some(unsafe { &*at.cast() })
    }

    /// The word at byte `offset`, like [`one_own_word`](Self::one_own_word), with the block that holds it. User memory
    /// has no block of its own that would keep it.
    pub(crate) fn find_word(&self, offset: usize) -> Option<Word> {
        match self.memory.backing {
            Backing::Mapped { .. } | Backing::Heap(_) => {
                Some(Word { at: NonNull::from(self.one_own_word(offset)?), _memory: self.memory.clone() })
            }
            Backing::OtherProcess(_) | Backing::Lent => None,
        }
    }

    /// `len` words from byte `offset` on, for this processor to change, if they are inside and aligned. Debug builds
    /// return `None` where an adapter executes the atomics.
    #[inline(always)]
    pub(crate) fn own_words(&self, offset: usize, len: usize) -> Option<&[AtomicU64]> {
        if cfg!(debug_assertions) && self.header().adapter.load(std::sync::atomic::Ordering::Relaxed) != 0 {
            return None;
        }
        let start = self.words_address(offset, len.checked_mul(8)?).filter(|start| start.addr().is_multiple_of(8))?;
        // SAFETY: inside and aligned, kept mapped by the view, and accessed as in `atomics`.
        Some(unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }
}

#[cold]
fn adapter_word() -> FabricError {
    let why = "a processor atomic was used on a word whose atomics the adapter executes";
    FabricError::Misuse { why: why.into() }
}

/// A word of a block, found once: its atomics check neither bounds nor alignment again.
pub struct Word {
    at: NonNull<AtomicU64>,
    /// Keeps the word mapped.
    _memory: Arc<MemoryBlock>,
}

// SAFETY: as for `MemoryBlock`; the word is accessed only atomically.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: inside its block and aligned when it was found, kept mapped by `_memory`, and only accessed atomically.
        unsafe { self.at.as_ref() }
    }
}

/// The order of each verb is that of the same verb in `words`.
impl FoundWord for Word {
    #[inline(always)]
    fn cas(&self, expected: u64, new: u64) -> u64 {
        match self.word().compare_exchange(expected, new, SeqCst, SeqCst) {
            Ok(found) | Err(found) => found,
        }
    }

    #[inline(always)]
    fn add(&self, delta: u64) -> u64 {
        self.word().fetch_add(delta, SeqCst)
    }

    #[inline(always)]
    fn read(&self) -> u64 {
        self.word().load(SeqCst)
    }
}
