//! Calls of the provider that TRANSOM_FABRIC chose: each matches on an enum. The rows of `table` generate the enums and
//! macros.

use super::ProviderError;
use super::asked::{self, Choice};
use super::job_provider::JobProvider;
use super::table::{Chosen, Pending, ROWS, Region, Remote, Transfer};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;
use transom_launch::bootstrap::Apart;
use transom_launch::variables::Variable;
use transom_locks::{Awaited, Rank};
use transom_network::Mapped;
use transom_shm_loopback::{Loopback, Meet, View};
use transom_windows::{BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UserMemory, Wait, Wake};

#[cold]
fn mixed() -> FabricError {
    FabricError::Misuse { why: "memory of one provider was handed to another".into() }
}

impl Chosen {
    pub(super) fn variables() -> Vec<Variable> {
        list!(P, _name => P::variables()).concat()
    }

    pub(super) fn probe() -> Vec<Result<String, String>> {
        list!(P, _name => P::probe()).into()
    }

    /// Names of the networks between hosts.
    pub(super) fn networks() -> Vec<&'static str> {
        list!(P, name => P::BETWEEN_HOSTS.then_some(name)).into_iter().flatten().collect()
    }

    pub(super) fn on_one_host(job: Loopback, choice: Choice) -> Result<Self, ProviderError> {
        let chosen = choice.0.unwrap_or(ROWS[0].name);
        first!(P, name if name == chosen => P::on_one_host(job, choice));
        unreachable!("a choice is a row of this build")
    }

    pub(super) fn of_threads(job: Loopback, choice: Choice) -> Result<Self, ProviderError> {
        let chosen = choice.0.unwrap_or(ROWS[0].name);
        first!(P, name if P::BETWEEN_THREADS && name == chosen => P::of_threads(job, choice));
        Self::of_threads(job, Choice(None))
    }

    pub(super) fn on_several_hosts(apart: Apart, choice: Choice) -> Result<Self, ProviderError> {
        let usable = |name: &'static str, probed: Result<String, String>| match probed {
            Ok(_) => Some(name),
            Err(why) => {
                tracing::info!(network = name, why, "this rank cannot use a network");
                None
            }
        };
        // Not probed if the program has chosen.
        let probes = choice.0.is_none();
        let networks = list!(P, name => if probes && P::BETWEEN_HOSTS { usable(name, P::probe()) } else { None });
        let usable: Vec<&str> = networks.into_iter().flatten().collect();
        let chosen = asked::agree(&apart.tcp, choice, &usable)?;
        first!(P, name if P::BETWEEN_HOSTS && chosen == Some(name) => P::on_several_hosts(apart, choice));
        Err(ProviderError::Apart { hosts: apart.hosts.to_string() })
    }

    pub(super) fn describe(&self) -> String {
        each!(self, provider => JobProvider::describe(provider))
    }

    pub(super) fn shared_memory(&self) -> Option<&Loopback> {
        each!(self, provider => JobProvider::shared_memory(provider))
    }

    pub(super) fn hosts(&self) -> Option<Vec<u32>> {
        each!(self, provider => JobProvider::hosts(provider))
    }

    pub(super) fn memory_of_host(&self) -> Option<&Loopback> {
        each!(self, provider => JobProvider::memory_of_host(provider))
    }

    pub(super) unsafe fn transport(
        &self,
        asked: &transom_channel::Changes,
    ) -> Result<Option<super::job_provider::ConfiguredTransport>, FabricError> {
        // SAFETY: caller's contract.
        each!(self, provider => unsafe { JobProvider::transport(provider, asked) })
    }
}

impl Mapped for Chosen {
    fn memory(&self) -> &Loopback {
        each!(self, provider => provider.memory())
    }

    fn view<'r>(&self, on: &'r Region) -> Result<&'r View, FabricError> {
        both!(self, on, Region, provider, on => provider.view(on))
    }

    fn mapped(&self, at: &Remote) -> Result<View, FabricError> {
        both!(self, at, Remote, provider, at => provider.mapped(at))
    }

    fn only_memory(&self) -> bool {
        each!(self, provider => provider.only_memory())
    }

    fn maps_all_words(&self) -> bool {
        each!(self, provider => provider.maps_all_words())
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        each!(self, provider, made: Chosen => Mapped::team(provider, members, meet).map(made))
    }
}

impl OobExchange for Chosen {
    fn rank(&self) -> Rank {
        each!(self, fabric => fabric.rank())
    }

    fn size(&self) -> usize {
        each!(self, fabric => fabric.size())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        each!(self, fabric => fabric.all_gather(mine))
    }

    fn barrier(&self) -> Result<(), FabricError> {
        each!(self, fabric => fabric.barrier())
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        each!(self, fabric => fabric.check_peers(awaited))
    }

    fn lost(&self) -> Option<FabricError> {
        each!(self, fabric => fabric.lost())
    }

    fn fail(&self) {
        each!(self, fabric => fabric.fail());
    }
}

impl Fabric for Chosen {
    type Region = Region;
    type Remote = Remote;
    /// [`Direct`](transom_network::Direct) finds the words of memory that is mapped here.
    type Word = Infallible;
    type Pending = Pending;
    type Transfer = Transfer;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        each!(self, fabric, made: Region => fabric.allocate(bytes).map(|(region, key)| (made(region), key)))
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        each!(self, fabric, made: Region => unsafe { fabric.register(memory) }.map(|(region, key)| (made(region), key)))
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        // SAFETY: caller's contract.
        each!(self, fabric, made: Remote => unsafe { fabric.attach_user_memory(rank, key, bytes) }.map(made))
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        each!(self, fabric, made: Remote => fabric.attach(rank, key, bytes).map(made))
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote, FabricError> {
        each!(self, fabric, made: Remote => fabric.attach_part(rank, key, bytes, words).map(made))
    }

    fn close(&self, region: &mut Region) {
        // A region of another provider stays open.
        both!(self, region, Region, fabric, region => fabric.close(region), else ());
    }

    fn withdraw(&self, region: &mut Region) {
        both!(self, region, Region, fabric, region => fabric.withdraw(region), else ());
    }

    fn is_shared(&self, at: &Remote) -> bool {
        both!(self, at, Remote, fabric, at => fabric.is_shared(at), else false)
    }

    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        both!(self, to, Remote, fabric, to => fabric.put(to, offset, source))
    }

    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        both!(self, from, Remote, fabric, from => fabric.get(from, offset, into))
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Transfer, FabricError> {
        both!(self, to, Remote, fabric, to, made: Transfer => fabric.start_put(to, offset, source).map(made))
    }

    fn start_get(&self, from: &Remote, offset: usize, into: BoxBytes) -> Result<Transfer, FabricError> {
        both!(self, from, Remote, fabric, from, made: Transfer => fabric.start_get(from, offset, into).map(made))
    }

    fn test(&self, moving: &mut Transfer) -> Result<bool, FabricError> {
        both!(self, moving, Transfer, fabric, moving => fabric.test(moving))
    }

    fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        both!(self, moving, Transfer, fabric, moving => fabric.finish_moving(moving))
    }

    unsafe fn lend_put(
        &self,
        to: &Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        // SAFETY: caller's contract.
        both!(self, to, Remote, fabric, to, made: Transfer => unsafe { fabric.lend_put(to, offset, source) }.map(|moving| moving.map(made)))
    }

    unsafe fn lend_get(
        &self,
        from: &Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        // SAFETY: caller's contract.
        both!(self, from, Remote, fabric, from, made: Transfer => unsafe { fabric.lend_get(from, offset, into) }.map(|moving| moving.map(made)))
    }

    unsafe fn finish_get(&self, moving: Transfer, into: NonNull<[u8]>) -> Result<(), FabricError> {
        // SAFETY: caller's contract.
        both!(self, moving, Transfer, fabric, moving => unsafe { fabric.finish_get(moving, into) })
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        each!(self, fabric => fabric.buffer(bytes))
    }

    fn start_cas(
        &self,
        at: &Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Pending, FabricError> {
        both!(self, at, Remote, fabric, at, made: Pending => {
            fabric.start_cas(at, offset, expected, new, wake).map(made)
        })
    }

    fn cas(&self, at: &Remote, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        both!(self, at, Remote, fabric, at => fabric.cas(at, offset, expected, new, wake))
    }

    fn start_add(&self, at: &Remote, offset: usize, delta: u64, wake: Wake) -> Result<Pending, FabricError> {
        both!(self, at, Remote, fabric, at, made: Pending => fabric.start_add(at, offset, delta, wake).map(made))
    }

    fn read_word(&self, at: &Remote, offset: usize) -> Result<u64, FabricError> {
        both!(self, at, Remote, fabric, at => fabric.read_word(at, offset))
    }

    fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
        both!(self, pending, Pending, fabric, pending => fabric.finish(pending))
    }

    fn notify(&self, at: &Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.notify(at, offset, value, wake))
    }

    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        both!(self, on, Region, fabric, on => fabric.word(on, offset))
    }

    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        both!(self, from, Region, fabric, from => fabric.load(from, offset, into))
    }

    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        both!(self, to, Region, fabric, to => fabric.store(to, offset, source))
    }

    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        both!(self, on, Region, fabric, on => fabric.wait(on, wait, look))
    }

    fn after_empty_poll(&self) {
        each!(self, fabric => fabric.after_empty_poll())
    }

    fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        both!(self, at, Remote, fabric, at => fabric.bytes(at, offset, len), else None)
    }

    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.flush(at))
    }

    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.order(at))
    }

    fn order_all<'r>(&self, at: impl Iterator<Item = &'r Remote> + Clone) -> Result<(), FabricError> {
        all!(self, at, Remote, fabric, at => fabric.order_all(at))
    }

    fn flush_all<'r>(&self, at: impl Iterator<Item = &'r Remote> + Clone) -> Result<(), FabricError> {
        all!(self, at, Remote, fabric, at => fabric.flush_all(at))
    }
}
