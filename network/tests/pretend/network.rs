//! A fake network between threads of one process. A put takes effect as late as the contract allows: at the next
//! operation of its rank that orders it. All operations are counted.

use crate::wire::{Posts, PretendWire};
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use transom_channel::{Changes, Config};
use transom_launch::variables::Variable;
use transom_locks::{Awaited, Rank, Wake};
use transom_network::{Atomics, Attach, Bootstrap, Hybrid, MemoryKind, Network, NetworkWire, Node};
use transom_shm_loopback::{self as shm, Loopback, View};
use transom_windows::{BoxBytes, Fabric, FabricError, OobExchange, Wait};

/// Numbers of operations that a rank left to the network.
#[derive(Debug, Default)]
pub struct Counts {
    pub puts: AtomicU64,
    pub gets: AtomicU64,
    pub atomics: AtomicU64,
    /// Posts of messages, by peer.
    pub posts: Posts,
}

impl Counts {
    /// Puts, gets and atomics since the last call.
    pub fn take(&self) -> [u64; 3] {
        [&self.puts, &self.gets, &self.atomics].map(|count| count.swap(0, SeqCst))
    }
}

/// A rank of a job or team. `ADAPTER`: an adapter executes atomics.
#[derive(Clone)]
pub struct Pretend<const ADAPTER: bool> {
    job: Arc<dyn Bootstrap>,
    pub node: Node,
    pub counts: Arc<Counts>,
    /// Puts that have not taken effect.
    puts: Arc<Mutex<Vec<Put>>>,
}

/// Target region, offset in bytes, and data.
type Put = (View, usize, Vec<u8>);

/// The regions of all ranks, by the number that serves as their key.
static REGIONS: Mutex<BTreeMap<u64, View>> = Mutex::new(BTreeMap::new());
static NUMBERS: AtomicU64 = AtomicU64::new(1);
/// The jobs of all tests by address, so that `wire` can find its job.
static JOBS: Mutex<Option<HashMap<usize, Loopback>>> = Mutex::new(None);

pub struct Region {
    number: u64,
    _memory: View,
}

impl Drop for Region {
    fn drop(&mut self) {
        REGIONS.lock().unwrap().remove(&self.number);
    }
}

impl<const ADAPTER: bool> Pretend<ADAPTER> {
    /// Applies all pending puts of this rank.
    fn settle(&self) -> Result<(), FabricError> {
        let puts = std::mem::take(&mut *self.puts.lock().unwrap());
        puts.iter().try_for_each(|(view, offset, bytes)| self.node.memory().put(view, *offset, bytes))
    }

    /// A word that is changed as by an adapter, bypassing the library.
    fn word(at: &View, offset: usize) -> Result<&AtomicU64, FabricError> {
        let start = at.start().expect("all memory is of this process");
        if offset + 8 > at.len() {
            return Err(FabricError::OutOfBounds { offset, len: 8, size: at.len() });
        }
        // SAFETY: inside the view, which keeps the memory; aligned, because regions begin at a cache line and tests use
        // words.
        Ok(unsafe { AtomicU64::from_ptr(start.add(offset).as_ptr().cast()) })
    }
}

impl<const ADAPTER: bool> OobExchange for Pretend<ADAPTER> {
    fn rank(&self) -> Rank {
        self.job.rank()
    }

    fn size(&self) -> usize {
        self.job.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.job.all_gather(mine)
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.job.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.job.lost()
    }

    fn fail(&self) {
        self.job.fail();
    }
}

impl<const ADAPTER: bool> Network for Pretend<ADAPTER> {
    const NAME: &'static str = "pretend";
    const VARIABLES: &'static [Variable] = &[];
    const ATOMICS: Atomics = if ADAPTER { Atomics::Adapter } else { Atomics::Processor };

    type Error = Infallible;
    type Region = Region;
    type Remote = View;
    type Pending = u64;
    type Transfer = BoxBytes;

    fn probe(_: &Config) -> Result<String, Infallible> {
        Ok("threads".into())
    }

    fn open(job: Arc<dyn Bootstrap>, node: Node, _: &Config) -> Result<Self, Infallible> {
        Ok(Pretend { job, node, counts: Arc::default(), puts: Arc::default() })
    }

    fn team(&self, _: &[Rank], job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError> {
        Ok(Pretend { job, node, counts: self.counts.clone(), puts: self.puts.clone() })
    }

    fn wire(&self, asked: &Changes) -> Result<(Box<dyn NetworkWire>, Config), FabricError> {
        let jobs = JOBS.lock().unwrap();
        let job = &jobs.as_ref().expect("the job is listed")[&Arc::as_ptr(&self.job).addr()];
        let wire = PretendWire::open(job, self.counts.clone())?;
        Ok((Box::new(wire), asked.of(Config::default())))
    }

    fn expose(&self, memory: &View, _: MemoryKind) -> Result<(Region, Vec<u8>), FabricError> {
        let number = NUMBERS.fetch_add(1, SeqCst);
        REGIONS.lock().unwrap().insert(number, memory.clone());
        Ok((Region { number, _memory: memory.clone() }, number.to_le_bytes().to_vec()))
    }

    fn attach(&self, region: Attach<'_>) -> Result<View, FabricError> {
        let number = region.key.try_into().ok().map(u64::from_le_bytes);
        let view = number.and_then(|number| REGIONS.lock().unwrap().get(&number).cloned());
        let view = view.filter(|view| view.len() == region.bytes);
        let why = "no such region".into();
        view.ok_or(FabricError::BadKey { rank: region.rank, why, source: None })
    }

    fn put(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.counts.puts.fetch_add(1, SeqCst);
        self.puts.lock().unwrap().push((to.clone(), offset, source.to_vec()));
        Ok(())
    }

    fn get(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.counts.gets.fetch_add(1, SeqCst);
        self.settle()?;
        self.node.memory().get(from, offset, into)
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

    fn start_cas(&self, at: &View, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        self.counts.atomics.fetch_add(1, SeqCst);
        self.settle()?;
        if ADAPTER {
            let swapped = Self::word(at, offset)?.compare_exchange(expected, new, SeqCst, SeqCst);
            return Ok(swapped.unwrap_or_else(|found| found));
        }
        self.node.memory().start_cas(at, offset, expected, new, wake)
    }

    fn start_add(&self, at: &View, offset: usize, delta: u64, wake: Wake) -> Result<u64, FabricError> {
        self.counts.atomics.fetch_add(1, SeqCst);
        self.settle()?;
        if ADAPTER {
            return Ok(Self::word(at, offset)?.fetch_add(delta, SeqCst));
        }
        self.node.memory().start_add(at, offset, delta, wake)
    }

    fn finish(&self, pending: u64) -> Result<u64, FabricError> {
        Ok(pending)
    }

    fn notify(&self, at: &View, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        self.counts.atomics.fetch_add(1, SeqCst);
        self.settle()?;
        if ADAPTER {
            Self::word(at, offset)?.store(value, SeqCst);
            return Ok(());
        }
        self.node.memory().notify(at, offset, value, wake)
    }

    fn wait<R>(
        &self,
        _: &shm::Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        wait.poll(true, look, || self.check_peers(wait.awaited))
    }

    fn flush(&self, _: &View) -> Result<(), FabricError> {
        self.settle()
    }

    fn order(&self, _: &View) -> Result<(), FabricError> {
        self.settle()
    }
}

/// Runs `body` on a rank for each entry of `hosts`, the number of its host.
pub fn on_hosts<const ADAPTER: bool>(hosts: &[u32], body: impl Fn(Hybrid<Pretend<ADAPTER>>) + Sync) {
    let jobs = Loopback::threads(hosts.len()).unwrap();
    let numbered = |host: u32| hosts.iter().enumerate().filter(move |(_, of)| **of == host);
    let mut here = vec![Vec::new(); hosts.len()];
    let mut nodes: Vec<Option<Loopback>> = vec![None; hosts.len()];
    for host in 0..=hosts.iter().copied().max().unwrap() {
        let memories = Loopback::threads(numbered(host).count()).unwrap();
        for ((rank, _), memory) in numbered(host).zip(memories) {
            nodes[rank] = Some(memory);
            here[rank] = (0..hosts.len()).map(|other| numbered(host).position(|(rank, _)| rank == other)).collect();
        }
    }
    std::thread::scope(|scope| {
        for ((job, here), memory) in jobs.into_iter().zip(here).zip(nodes) {
            let body = &body;
            scope.spawn(move || {
                let bootstrap: Arc<dyn Bootstrap> = Arc::new(job.clone());
                let address = Arc::as_ptr(&bootstrap).addr();
                JOBS.lock().unwrap().get_or_insert_default().insert(address, job.clone());
                let (memory, ended) = (memory.unwrap(), Leaving(job));
                let node = Node::some(memory, here, hosts);
                body(Hybrid::open(bootstrap, node, &Config::default()).unwrap());
                JOBS.lock().unwrap().get_or_insert_default().remove(&address);
                drop(ended);
            });
        }
    });
}

/// Leaves the job when dropped, so that no rank waits for one that panicked.
struct Leaving(Loopback);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}
