//! The verbs of windows: a remote operation is a request to the target's service thread.

use crate::carrier::Socket;
use crate::endpoint::Endpoint;
use crate::error::TcpError;
use crate::frame::{At, LONGEST, Request};
use crate::lane::Ticket;
use crate::member::{DeferredMemory, Member};
use crate::messages;
use crate::regions;
use crate::replies::Outcome;
use crate::variables;
use std::collections::VecDeque;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_launch::Interface;
use transom_launch::variables::Variable;
use transom_locks::{Awaited, Rank, Wake};
use transom_network::{Atomics, Attach, Bootstrap, DeferredFree, MemoryKind, Network, NetworkWire, Node};
use transom_shm_loopback::{self as shm, View};
use transom_windows::{BoxBytes, Fabric, FabricError, OobExchange, Wait};

/// Parts of a long get that are requested before the first has come. Each has a buffer that later parts use again, since
/// fresh memory takes the kernel longer than its bytes take the network.
const AHEAD: usize = 8;

/// The provider over TCP: a handle of one rank of a job or team.
#[derive(Clone)]
pub struct Tcp(Arc<Member>);

/// Memory of this rank that peers reach. Once it is dropped, it stays until all ranks that made it together have dropped
/// theirs, and no other rank is attached. Memory that the program lent is leaked unless all have.
pub struct Region {
    /// `None` after the drop.
    region: Option<regions::Region>,
    /// Number of the collective call that made it.
    number: Option<u64>,
    member: Arc<Member>,
}

impl Drop for Region {
    fn drop(&mut self) {
        let region = self.region.take();
        if let Some(number) = self.number {
            let kept = region.map(|region| DeferredMemory::Region { _region: region });
            self.member.remains.let_go(number, kept);
        }
    }
}

/// The right to reach a region.
pub struct Remote {
    rank: Rank,
    number: u64,
    bytes: usize,
    /// The region is this rank's own.
    is_own: bool,
    /// This rank attached alone, and must tell the owner when it no longer needs the region.
    attached: Option<Arc<Member>>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let Some(member) = &self.attached else { return };
        let detach = Request::Detach { region: self.number };
        if self.is_own {
            member.endpoint.regions.detach(self.number);
        } else if let Err(error) = member.on_lane(self.rank, |lane| lane.post(&detach, || member.alive(self.rank))) {
            tracing::debug!(rank = self.rank, %error, "cannot tell a rank that its memory is not used any more");
        }
    }
}

/// An atomic in flight.
pub struct Pending(MaybeDone<u64>);

/// A read or write in flight, and its buffer.
pub struct Transfer(MaybeDone<BoxBytes>);

enum MaybeDone<D> {
    Done(D),
    Far(Rank, Ticket<Socket>),
}

impl Remote {
    /// The place of `len` bytes from `offset` on.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<At, FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        Ok(At { region: self.number, offset: offset as u64 })
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<At, FabricError> {
        if !offset.is_multiple_of(8) {
            return Err(FabricError::Misaligned { offset });
        }
        self.at(offset, 8)
    }
}

impl Tcp {
    /// Calls `act` with this rank's own region.
    fn own<R>(&self, at: &Remote, act: impl FnOnce(&View) -> Result<R, FabricError>) -> Result<R, FabricError> {
        let mut acted = None;
        let found = self.0.endpoint.regions.with(at.number, |view| {
            acted = Some(act(view));
            Ok(())
        });
        match (found, acted) {
            (Ok(()), Some(acted)) => acted,
            (refused, _) => {
                Err(self.0.why(at.rank, refused.map_or_else(Into::into, |()| unreachable!("it was called"))))
            }
        }
    }

    /// The regions of this rank.
    #[cfg(test)]
    pub(crate) fn regions(&self) -> Arc<regions::Regions> {
        self.0.endpoint.regions.clone()
    }

    /// An address at which this rank accepts connections.
    #[cfg(test)]
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.0.endpoint.addresses()[0]
    }

    fn start(&self, at: &Remote, request: &Request<'_>) -> Result<Pending, FabricError> {
        let ticket = self.0.on_lane(at.rank, |lane| lane.start_atomic(request, || self.0.alive(at.rank)))?;
        Ok(Pending(MaybeDone::Far(at.rank, ticket)))
    }
}

/// An address with its interface and the MTU of that.
fn described(found: &Interface) -> String {
    let Interface { name, address, .. } = found;
    match std::fs::read_to_string(format!("/sys/class/net/{name}/mtu")) {
        Ok(mtu) => format!("{address} ({name}, MTU {})", mtu.trim()),
        Err(_) => format!("{address} ({name})"),
    }
}

impl OobExchange for Tcp {
    fn rank(&self) -> Rank {
        self.0.job.rank()
    }

    fn size(&self) -> usize {
        self.0.job.size()
    }

    /// Also reports dropped windows and teams.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let Member { remains, job, .. } = &*self.0;
        let all = job.all_gather(&remains.tell(mine, || self.0.drain(None)))?;
        let message = |(rank, bytes): (Rank, &Vec<u8>)| {
            let message = remains.hear(bytes);
            let why = || format!("rank {rank} sent a malformed all-gather message of {} bytes", bytes.len());
            Ok(message.ok_or_else(|| FabricError::Corrupt { why: why() })?.to_vec())
        };
        all.iter().enumerate().map(message).collect()
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.0.job.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.0.job.lost()
    }

    fn fail(&self) {
        self.0.job.fail();
    }
}

impl Network for Tcp {
    const NAME: &'static str = "tcp";
    const VARIABLES: &'static [Variable] = variables::TABLE;
    const ATOMICS: Atomics = Atomics::Processor;

    type Error = TcpError;
    type Region = Region;
    type Remote = Remote;
    type Pending = Pending;
    type Transfer = Transfer;

    fn probe(_: &Config) -> Result<String, TcpError> {
        let usable = variables::LISTEN_AT.usable()?;
        Ok(format!("ranks would listen at {}", usable.iter().map(described).collect::<Vec<_>>().join(", ")))
    }

    fn describe(&self) -> String {
        let usable = variables::LISTEN_AT.usable().unwrap_or_default();
        let published = self.0.endpoint.addresses();
        let published = usable.iter().filter(|found| published.iter().any(|address| address.ip() == found.address));
        format!("listens at {}", published.map(described).collect::<Vec<_>>().join(", "))
    }

    fn open(job: Arc<dyn Bootstrap>, node: Node, _: &Config) -> Result<Self, TcpError> {
        let endpoint = Arc::new(Endpoint::open(&job, &node)?);
        let peers = (0..job.size() as u32).collect();
        let (remains, failed) = Default::default();
        Ok(Tcp(Arc::new(Member { parent: None, remains, job, node, endpoint, peers, failed })))
    }

    fn team(&self, members: &[Rank], job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError> {
        let above = &self.0;
        let led = if job.rank() == 0 { above.remains.lead(above.job.rank()) } else { 0 };
        let told = job.all_gather(&led.to_le_bytes())?;
        let number = told.first().and_then(|led| led[..].try_into().ok()).map(u64::from_le_bytes);
        let why = || "the first rank of a team sent no number of 8 bytes for it".into();
        let number = number.ok_or_else(|| FabricError::Corrupt { why: why() })?;
        above.remains.share(number, members.len());
        let peers = members.iter().map(|&rank| above.peers[rank]).collect();
        let (endpoint, failed) = (above.endpoint.clone(), above.failed.clone());
        let (parent, remains) = (Some((above.clone(), number)), DeferredFree::default());
        Ok(Tcp(Arc::new(Member { parent, remains, job, node, endpoint, peers, failed })))
    }

    fn wire(&self, asked: &Changes) -> Result<(Box<dyn NetworkWire>, Config), FabricError> {
        messages::open(&self.0.endpoint, &self.0.job, &self.0.node, asked)
    }

    fn expose(&self, memory: &View, _: MemoryKind) -> Result<(Region, Vec<u8>), FabricError> {
        let region = self.0.endpoint.regions.add(memory);
        let key = region.number().to_le_bytes().to_vec();
        Ok((Region { region: Some(region), number: None, member: self.0.clone() }, key))
    }

    fn close(&self, region: &mut Region) {
        region.number.get_or_insert_with(|| self.0.remains.number(self.size()));
    }

    fn withdraw(&self, region: &mut Region) {
        if let Some(exposed) = region.region.take() {
            exposed.withdraw();
        }
    }

    fn attach(&self, region: Attach<'_>) -> Result<Remote, FabricError> {
        let Attach { rank, key, bytes, together, .. } = region;
        let number = key.try_into().map(u64::from_le_bytes).map_err(|_| {
            let why = format!("its key has {} bytes, expected 8", key.len());
            FabricError::BadKey { rank, why, source: None }
        })?;
        let mut remote = Remote { rank, number, bytes, is_own: rank == self.rank(), attached: None };
        if !together {
            if remote.is_own {
                self.0.endpoint.regions.attach(number).map_err(|refused| self.0.why(rank, refused.into()))?;
            } else {
                self.finish(self.start(&remote, &Request::Attach { region: number })?)?;
            }
            remote.attached = Some(self.0.clone());
        }
        Ok(remote)
    }

    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        let at = to.at(offset, source.len())?;
        if to.is_own {
            return self.own(to, |view| self.0.node.memory().put(view, offset, source));
        }
        self.0.on_lane(to.rank, |lane| lane.put(at, source, || self.0.alive(to.rank)))
    }

    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        from.at(offset, into.len())?;
        if from.is_own {
            return self.own(from, |view| self.0.node.memory().get(view, offset, into));
        }
        let finish = |(part, moving): (&mut [u8], _)| {
            let bytes = self.finish_moving(moving)?;
            part.copy_from_slice(&bytes);
            Ok::<_, FabricError>(bytes)
        };
        let mut moving = VecDeque::with_capacity(AHEAD);
        for (number, part) in into.chunks_mut(LONGEST).enumerate() {
            let used = if moving.len() == AHEAD { moving.pop_front().map(finish).transpose()? } else { None };
            let buffer = used.filter(|used| used.len() == part.len());
            let buffer = buffer.unwrap_or_else(|| vec![0_u8; part.len()].into_boxed_slice().into());
            moving.push_back((part, self.start_get(from, offset + number * LONGEST, buffer)?));
        }
        moving.into_iter().try_for_each(|part| finish(part).map(drop))
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Transfer, FabricError> {
        self.put(to, offset, &source).map(|()| Transfer(MaybeDone::Done(source)))
    }

    fn start_get(&self, from: &Remote, offset: usize, mut into: BoxBytes) -> Result<Transfer, FabricError> {
        if from.is_own {
            return self.get(from, offset, &mut into).map(|()| Transfer(MaybeDone::Done(into)));
        }
        let at = from.at(offset, into.len())?;
        let ticket = self.0.on_lane(from.rank, |lane| lane.start_get(at, into, || self.0.alive(from.rank)))?;
        Ok(Transfer(MaybeDone::Far(from.rank, ticket)))
    }

    fn test(&self, moving: &mut Transfer) -> Result<bool, FabricError> {
        match &mut moving.0 {
            MaybeDone::Done(_) => Ok(true),
            MaybeDone::Far(rank, ticket) => {
                let rank = *rank;
                ticket.is_done(|| self.0.alive(rank)).map_err(|halt| self.0.why(rank, halt))
            }
        }
    }

    fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => Ok(bytes),
            MaybeDone::Far(rank, ticket) => match ticket.wait(|| self.0.alive(rank)) {
                Ok(Outcome::Data(bytes)) => Ok(bytes),
                Ok(_) => unreachable!("a get is answered with data"),
                Err(halt) => Err(self.0.why(rank, halt)),
            },
        }
    }

    fn start_cas(
        &self,
        at: &Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Pending, FabricError> {
        let place = at.word(offset)?;
        if at.is_own {
            let found = self.own(at, |view| self.0.node.memory().start_cas(view, offset, expected, new, wake));
            return found.map(|found| Pending(MaybeDone::Done(found)));
        }
        self.start(at, &Request::Cas { at: place, expected, new, wake })
    }

    fn start_add(&self, at: &Remote, offset: usize, delta: u64, wake: Wake) -> Result<Pending, FabricError> {
        let place = at.word(offset)?;
        if at.is_own {
            let found = self.own(at, |view| self.0.node.memory().start_add(view, offset, delta, wake));
            return found.map(|found| Pending(MaybeDone::Done(found)));
        }
        self.start(at, &Request::Add { at: place, delta, wake })
    }

    fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
        match pending.0 {
            MaybeDone::Done(word) => Ok(word),
            MaybeDone::Far(rank, ticket) => match ticket.wait(|| self.0.alive(rank)) {
                Ok(Outcome::Word(word)) => Ok(word),
                Ok(_) => unreachable!("an atomic is answered with a word"),
                Err(halt) => Err(self.0.why(rank, halt)),
            },
        }
    }

    fn notify(&self, at: &Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        let place = at.word(offset)?;
        if at.is_own {
            return self.own(at, |view| self.0.node.memory().notify(view, offset, value, wake));
        }
        let request = Request::Notify { at: place, value, wake };
        self.0.on_lane(at.rank, |lane| lane.post(&request, || self.0.alive(at.rank)))
    }

    /// Serves peers until the thread sleeps. The service thread, and ranks of this host, wake it.
    fn wait<R>(
        &self,
        on: &shm::Region,
        wait: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        let look = || {
            let found = look()?;
            if found.is_none() {
                self.0.endpoint.help();
            }
            Ok(found)
        };
        self.0.node.memory().wait_in_job(on, wait, look, || self.check_peers(wait.awaited))
    }

    fn after_empty_poll(&self) {
        self.0.endpoint.help();
        self.0.node.memory().after_empty_poll();
        if self.0.endpoint.shares_cores() {
            transom_windows::after_empty_poll();
        }
    }

    fn start_flush(&self, at: &Remote) -> Result<(), FabricError> {
        let Some(lane) = self.0.endpoint.connected(self.0.peers[at.rank]) else { return Ok(()) };
        lane.flush_ahead(|| self.0.alive(at.rank)).map_err(|halt| self.0.why(at.rank, halt))
    }

    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        // Nothing was done there if there is no connection.
        let Some(lane) = self.0.endpoint.connected(self.0.peers[at.rank]) else { return Ok(()) };
        let alive = || self.0.alive(at.rank);
        let flushed = lane.start_flush(alive).and_then(|flush| match flush {
            Some(flush) => lane.finish_flush(flush, alive),
            None => Ok(()),
        });
        flushed.map_err(|halt| self.0.why(at.rank, halt))
    }

    fn start_order(&self, at: &Remote) -> Result<(), FabricError> {
        self.start_flush(at)
    }

    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        self.flush(at)
    }
}
