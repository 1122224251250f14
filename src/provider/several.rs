//! The provider of a build that has several: each call looks which it is.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{self as shm, Loopback, Meet};
#[cfg(feature = "verbs")]
use transom_verbs::{self as verbs, Verbs};
#[cfg(feature = "delayed")]
use transom_windows::Delayed;
use transom_windows::{BoxBytes, ChangeBlock, Exchange, Fabric, FabricError, Memory, UserMemory, Wait, Wake};

/// The types of each provider, side by side.
macro_rules! providers {
    ($($(#[$cfg:meta])? $name:ident($provider:ty, $region:ty, $remote:ty, $pending:ty, $moving:ty): $doc:literal;)*) => {
        /// The provider of a [`World`](crate::World).
        #[derive(Clone)]
        #[non_exhaustive]
        pub enum Provider { $($(#[$cfg])? #[doc = $doc] $name($provider),)* }

        /// Memory of this rank.
        #[non_exhaustive]
        pub enum Region { $($(#[$cfg])? #[doc = $doc] $name($region),)* }

        /// The right to reach memory.
        #[non_exhaustive]
        pub enum Remote { $($(#[$cfg])? #[doc = $doc] $name($remote),)* }

        /// An atomic under way.
        #[non_exhaustive]
        pub enum Pending { $($(#[$cfg])? #[doc = $doc] $name($pending),)* }

        /// A read or write under way.
        #[non_exhaustive]
        pub enum Moving { $($(#[$cfg])? #[doc = $doc] $name($moving),)* }
    };
}

providers! {
    Loopback(Loopback, shm::Region, shm::View, u64, BoxBytes): "Ranks on one machine.";
    #[cfg(feature = "verbs")]
    Verbs(Verbs, verbs::Region, verbs::Remote, verbs::Pending, verbs::Moving): "Ranks on several machines.";
    #[cfg(feature = "delayed")]
    Delayed(
        Delayed<Loopback>,
        shm::Region,
        <Delayed<Loopback> as Fabric>::Remote,
        <Delayed<Loopback> as Fabric>::Pending,
        <Delayed<Loopback> as Fabric>::Moving
    ): "Ranks on one machine, whose operations are late.";
}

/// A call on whichever provider it is; `made` wraps what it makes in the variant of that name.
macro_rules! each {
    ($self:expr, $fabric:ident $(, $made:ident: $type:ident)? => $call:expr) => {
        match $self {
            Provider::Loopback($fabric) => {
                $(let $made = $type::Loopback;)?
                $call
            }
            #[cfg(feature = "verbs")]
            Provider::Verbs($fabric) => {
                $(let $made = $type::Verbs;)?
                $call
            }
            #[cfg(feature = "delayed")]
            Provider::Delayed($fabric) => {
                $(let $made = $type::Delayed;)?
                $call
            }
        }
    };
}

/// The same, with what that provider made before.
macro_rules! both {
    ($self:expr, $before:expr, $kind:ident, $fabric:ident, $at:ident $(, $made:ident: $type:ident)? => $call:expr) => {
        match ($self, $before) {
            (Provider::Loopback($fabric), $kind::Loopback($at)) => {
                $(let $made = $type::Loopback;)?
                $call
            }
            #[cfg(feature = "verbs")]
            (Provider::Verbs($fabric), $kind::Verbs($at)) => {
                $(let $made = $type::Verbs;)?
                $call
            }
            #[cfg(feature = "delayed")]
            (Provider::Delayed($fabric), $kind::Delayed($at)) => {
                $(let $made = $type::Delayed;)?
                $call
            }
            _ => Err(mixed()),
        }
    };
}

#[cold]
fn mixed() -> FabricError {
    FabricError::Misuse { why: "memory of one provider was handed to another".into() }
}

impl Provider {
    /// A team of these ranks alone: see [`Loopback::team`].
    ///
    /// # Errors
    /// As there.
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        Ok(match self {
            Provider::Loopback(fabric) => Provider::Loopback(fabric.team(members, meet)?),
            #[cfg(feature = "verbs")]
            Provider::Verbs(fabric) => Provider::Verbs(fabric.team(members, meet)?),
            #[cfg(feature = "delayed")]
            Provider::Delayed(fabric) => Provider::Delayed(Delayed::new(fabric.inner().team(members, meet)?)?),
        })
    }
}

impl Exchange for Provider {
    #[inline(always)]
    fn rank(&self) -> Rank {
        each!(self, fabric => fabric.rank())
    }

    #[inline(always)]
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

impl Fabric for Provider {
    type Region = Region;
    type Remote = Remote;
    type Pending = Pending;
    type Moving = Moving;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        each!(self, fabric, made: Region => fabric.allocate(bytes).map(|(region, key)| (made(region), key)))
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        // SAFETY: by the caller's word.
        each!(self, fabric, made: Region => unsafe { fabric.register(memory) }.map(|(region, key)| (made(region), key)))
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        // SAFETY: by the caller's word.
        each!(self, fabric, made: Remote => unsafe { fabric.attach_user_memory(rank, key, bytes) }.map(made))
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        each!(self, fabric, made: Remote => fabric.attach(rank, key, bytes).map(made))
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote, FabricError> {
        each!(self, fabric, made: Remote => fabric.attach_part(rank, key, bytes, words).map(made))
    }

    fn close(&self, region: &mut Region) {
        let closed: Result<(), FabricError> = both!(self, region, Region, fabric, region => {
            fabric.close(region);
            Ok(())
        });
        // Of another provider it is none of this one's business.
        drop(closed);
    }

    fn is_shared(&self, at: &Remote) -> bool {
        both!(self, at, Remote, fabric, at => Ok(fabric.is_shared(at))).unwrap_or(false)
    }

    #[inline(always)]
    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        both!(self, to, Remote, fabric, to => fabric.put(to, offset, source))
    }

    #[inline(always)]
    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        both!(self, from, Remote, fabric, from => fabric.get(from, offset, into))
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Moving, FabricError> {
        both!(self, to, Remote, fabric, to, made: Moving => fabric.start_put(to, offset, source).map(made))
    }

    fn start_get(&self, from: &Remote, offset: usize, into: BoxBytes) -> Result<Moving, FabricError> {
        both!(self, from, Remote, fabric, from, made: Moving => fabric.start_get(from, offset, into).map(made))
    }

    fn has_moved(&self, moving: &mut Moving) -> Result<bool, FabricError> {
        both!(self, moving, Moving, fabric, moving => fabric.has_moved(moving))
    }

    fn finish_moving(&self, moving: Moving) -> Result<BoxBytes, FabricError> {
        both!(self, moving, Moving, fabric, moving => fabric.finish_moving(moving))
    }

    unsafe fn lend_put(
        &self,
        to: &Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        // SAFETY: by the caller's word.
        both!(self, to, Remote, fabric, to, made: Moving => unsafe { fabric.lend_put(to, offset, source) }.map(|moving| moving.map(made)))
    }

    unsafe fn lend_get(
        &self,
        from: &Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        // SAFETY: by the caller's word.
        both!(self, from, Remote, fabric, from, made: Moving => unsafe { fabric.lend_get(from, offset, into) }.map(|moving| moving.map(made)))
    }

    unsafe fn finish_get(&self, moving: Moving, into: NonNull<[u8]>) -> Result<(), FabricError> {
        // SAFETY: by the caller's word.
        both!(self, moving, Moving, fabric, moving => unsafe { fabric.finish_get(moving, into) })
    }

    fn buffer(&self, bytes: usize) -> Result<Memory, FabricError> {
        each!(self, fabric => fabric.buffer(bytes))
    }

    #[inline(always)]
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

    #[inline(always)]
    fn cas(&self, at: &Remote, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        both!(self, at, Remote, fabric, at => fabric.cas(at, offset, expected, new, wake))
    }

    #[inline(always)]
    fn start_add(&self, at: &Remote, offset: usize, delta: u64, wake: Wake) -> Result<Pending, FabricError> {
        both!(self, at, Remote, fabric, at, made: Pending => fabric.start_add(at, offset, delta, wake).map(made))
    }

    #[inline(always)]
    fn read_word(&self, at: &Remote, offset: usize) -> Result<u64, FabricError> {
        both!(self, at, Remote, fabric, at => fabric.read_word(at, offset))
    }

    #[inline(always)]
    fn words<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU64]> {
        match (self, at) {
            (Provider::Loopback(fabric), Remote::Loopback(at)) => fabric.words(at, offset, len),
            _ => None,
        }
    }

    fn change_blocks(&self, at: &Remote, offset: usize, blocks: usize, change: impl ChangeBlock) -> bool {
        match (self, at) {
            (Provider::Loopback(fabric), Remote::Loopback(at)) => fabric.change_blocks(at, offset, blocks, change),
            _ => false,
        }
    }

    #[inline(always)]
    fn one_word<'r>(&self, at: &'r Remote, offset: usize) -> Option<&'r AtomicU64> {
        match (self, at) {
            (Provider::Loopback(fabric), Remote::Loopback(at)) => fabric.one_word(at, offset),
            _ => None,
        }
    }

    #[inline(always)]
    fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
        both!(self, pending, Pending, fabric, pending => fabric.finish(pending))
    }

    #[inline(always)]
    fn try_finish(&self, pending: Pending) -> Result<u64, Pending> {
        match (self, pending) {
            (Provider::Loopback(fabric), Pending::Loopback(pending)) => {
                fabric.try_finish(pending).map_err(Pending::Loopback)
            }
            // A provider with a network has no result at once.
            #[cfg(any(feature = "verbs", feature = "delayed"))]
            (_, pending) => Err(pending),
        }
    }

    #[inline(always)]
    fn notify(&self, at: &Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.notify(at, offset, value, wake))
    }

    #[inline(always)]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        both!(self, on, Region, fabric, on => fabric.word(on, offset))
    }

    #[inline(always)]
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        both!(self, on, Region, fabric, on => fabric.wait(on, wait, look))
    }

    #[inline(always)]
    fn looked_in_vain(&self) {
        each!(self, fabric => fabric.looked_in_vain())
    }

    #[inline(always)]
    fn watches(&self) -> bool {
        each!(self, fabric => fabric.watches())
    }

    #[inline(always)]
    fn watch<R>(
        &self,
        at: &Remote,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        both!(self, at, Remote, fabric, at => fabric.watch(at, wait, look))
    }

    #[inline(always)]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        both!(self, on, Region, fabric, on => Ok(fabric.own_bytes(on, offset, len))).unwrap_or(None)
    }

    #[inline(always)]
    fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        both!(self, at, Remote, fabric, at => Ok(fabric.bytes(at, offset, len))).unwrap_or(None)
    }

    #[inline(always)]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        both!(self, from, Region, fabric, from => fabric.load(from, offset, into))
    }

    #[inline(always)]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        both!(self, to, Region, fabric, to => fabric.store(to, offset, source))
    }

    #[inline(always)]
    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.flush(at))
    }

    #[inline(always)]
    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        both!(self, at, Remote, fabric, at => fabric.order(at))
    }

    fn flush_all(&self, at: &[Remote]) -> Result<(), FabricError> {
        match self {
            // One fence does for all.
            Provider::Loopback(_) => at.first().map_or(Ok(()), |at| self.flush(at)),
            #[cfg(feature = "verbs")]
            Provider::Verbs(fabric) => {
                // All under way at once.
                at.iter().try_for_each(|at| match at {
                    Remote::Verbs(at) => fabric.start_flush(at),
                    _ => Err(mixed()),
                })?;
                at.iter().try_for_each(|at| self.flush(at))
            }
            #[cfg(feature = "delayed")]
            Provider::Delayed(_) => at.iter().try_for_each(|at| self.flush(at)),
        }
    }
}
