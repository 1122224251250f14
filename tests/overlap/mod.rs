//! A fabric that wraps another one and counts its verbs. It lends the same memory to several windows, which may have
//! different types. The windows also share the words of their locks and barriers, so tests use only shared locks, and
//! fences of one window.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use transom::locks::{Awaited, Rank};
use transom::shm_loopback::{Loopback, Region, View};
use transom::windows::{BoxBytes, Fabric, OobExchange, UserMemory, Wait, Wake, Window};
use transom::{Atomic, FabricError};

/// The size of the part that all windows share, in bytes.
const SHARED: usize = 24;

type Lent = (Arc<Region>, Vec<u8>);

#[derive(Clone)]
pub struct Overlapping {
    fabric: Loopback,
    lent: Arc<Mutex<Option<Lent>>>,
    /// Every allocation has memory of its own.
    apart: bool,
    /// Requests for memory in place get half of it.
    halves: bool,
    /// Operations are in flight while this is true.
    held: Option<Arc<AtomicBool>>,
    /// Number of queries whether an operation is done.
    asked: Arc<AtomicUsize>,
    verbs: Arc<[AtomicUsize; 6]>,
    fails: Arc<AtomicUsize>,
}

impl Overlapping {
    pub fn new(fabric: Loopback) -> Self {
        Overlapping {
            fabric,
            lent: Arc::default(),
            apart: false,
            halves: false,
            held: None,
            asked: Arc::default(),
            verbs: Arc::default(),
            fails: Arc::default(),
        }
    }

    /// A fabric that only counts: its windows share no memory.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn counting(fabric: Loopback) -> Self {
        Overlapping { apart: true, ..Self::new(fabric) }
    }

    /// A faulty fabric, within what safe code can do: requests for memory in place get half of it.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn halving(fabric: Loopback) -> Self {
        Overlapping { halves: true, ..Self::counting(fabric) }
    }

    /// One over a network: operations are in flight until `held` is false.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn holding(fabric: Loopback, held: &Arc<AtomicBool>) -> Self {
        Overlapping { held: Some(held.clone()), ..Self::counting(fabric) }
    }

    /// The count of questions whether an operation is done.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn asked(&self) -> Arc<AtomicUsize> {
        self.asked.clone()
    }

    fn holds(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.load(SeqCst))
    }

    /// A window on the memory that all windows of this fabric share.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn window<T: Atomic>(&self) -> Window<T, Self> {
        Window::allocate(self, 0, SHARED / size_of::<T>()).unwrap()
    }

    /// Number of puts, gets, compare-and-swaps and fetch-and-adds of `call`.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn verbs(&self, call: impl FnOnce()) -> [usize; 4] {
        *self.all_verbs(call).first_chunk().expect("the array has six counters")
    }

    /// And posts and flushes.
    pub fn all_verbs(&self, call: impl FnOnce()) -> [usize; 6] {
        let count = || self.verbs.each_ref().map(|verb| verb.load(Relaxed));
        let before = count();
        call();
        std::array::from_fn(|verb| count()[verb] - before[verb])
    }

    /// Number of reports that its rank cannot go on.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn fails(&self) -> usize {
        self.fails.load(Relaxed)
    }

    fn count(&self, verb: usize) -> &Loopback {
        self.verbs[verb].fetch_add(1, Relaxed);
        &self.fabric
    }
}

impl OobExchange for Overlapping {
    fn rank(&self) -> Rank {
        self.fabric.rank()
    }

    fn size(&self) -> usize {
        self.fabric.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.fabric.all_gather(mine)
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.fabric.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.fabric.lost()
    }

    fn fail(&self) {
        self.fails.fetch_add(1, Relaxed);
        self.fabric.fail();
    }
}

impl Fabric for Overlapping {
    type Region = Arc<Region>;
    type Remote = View;
    type Word = std::convert::Infallible;
    type Pending = u64;
    type Transfer = BoxBytes;

    unsafe fn register(&self, memory: &UserMemory) -> Result<Lent, FabricError> {
        // SAFETY: by the caller's word.
        unsafe { self.fabric.register(memory) }.map(|(region, key)| (Arc::new(region), key))
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        // SAFETY: by the caller's word.
        unsafe { self.fabric.attach_user_memory(rank, key, bytes) }
    }

    fn is_shared(&self, at: &View) -> bool {
        self.held.is_none() && self.fabric.is_shared(at)
    }

    fn start_put(&self, to: &View, offset: usize, source: BoxBytes) -> Result<BoxBytes, FabricError> {
        self.count(0).start_put(to, offset, source)
    }

    fn start_get(&self, from: &View, offset: usize, into: BoxBytes) -> Result<BoxBytes, FabricError> {
        self.count(1).start_get(from, offset, into)
    }

    fn test(&self, moving: &mut BoxBytes) -> Result<bool, FabricError> {
        self.asked.fetch_add(1, Relaxed);
        self.fabric.test(moving).map(|moved| moved && !self.holds())
    }

    fn finish_moving(&self, moving: BoxBytes) -> Result<BoxBytes, FabricError> {
        while self.holds() {
            std::thread::yield_now();
        }
        self.fabric.finish_moving(moving)
    }

    fn allocate(&self, bytes: usize) -> Result<Lent, FabricError> {
        if self.apart {
            return self.fabric.allocate(bytes).map(|(region, key)| (Arc::new(region), key));
        }
        let mut lent = self.lent.lock().unwrap();
        let first = match lent.take() {
            Some(first) => first,
            None => self.fabric.allocate(bytes).map(|(region, key)| (Arc::new(region), key))?,
        };
        Ok(lent.insert(first).clone())
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        self.fabric.attach(rank, key, bytes)
    }

    fn put(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.count(0).put(to, offset, source)
    }

    fn get(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.count(1).get(from, offset, into)
    }

    fn start_cas(&self, at: &View, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        self.count(2).start_cas(at, offset, expected, new, wake)
    }

    fn start_add(&self, at: &View, offset: usize, delta: u64, wake: Wake) -> Result<u64, FabricError> {
        self.count(3).start_add(at, offset, delta, wake)
    }

    fn read_word(&self, at: &View, offset: usize) -> Result<u64, FabricError> {
        self.count(1).read_word(at, offset)
    }

    fn own_bytes<'r>(&self, on: &'r Arc<Region>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.fabric.own_bytes(on, offset, if self.halves { len / 2 } else { len })
    }

    fn bytes<'r>(&self, at: &'r View, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.fabric.bytes(at, offset, if self.halves { len / 2 } else { len })
    }

    fn finish(&self, pending: u64) -> Result<u64, FabricError> {
        self.fabric.finish(pending)
    }

    fn notify(&self, at: &View, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        self.count(4).notify(at, offset, value, wake)
    }

    fn word(&self, on: &Arc<Region>, offset: usize) -> Result<u64, FabricError> {
        self.fabric.word(on, offset)
    }

    fn wait<R>(
        &self,
        on: &Arc<Region>,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        self.fabric.wait(on, wait, look)
    }

    fn load(&self, from: &Arc<Region>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.fabric.load(from, offset, into)
    }

    fn store(&self, to: &Arc<Region>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.fabric.store(to, offset, source)
    }

    fn flush(&self, at: &View) -> Result<(), FabricError> {
        self.count(5).flush(at)
    }

    fn order(&self, at: &View) -> Result<(), FabricError> {
        self.fabric.order(at)
    }
}
