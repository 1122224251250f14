//! One-sided RMA and a partitioned global address space.
//!
//! A program runs as many *ranks*. Each rank exposes *windows* of memory, which other ranks read and change by put, get
//! and atomics while the owner computes or sleeps. Ranks of one machine share memory. Ranks of several machines use
//! TCP, or InfiniBand or RoCE by the feature `verbs`.
//!
//! ```
//! use transom::{Op, Window};
//!
//! // `transom::start(4)?` gives each of four processes its `World`. Here four threads have one each.
//! transom::threads(4, |world| -> Result<(), transom::Error> {
//!     let mut window: Window<u64> = world.allocate(100)?; // 100 elements at each rank
//!     let next = (world.rank() + 1) % world.size();
//!
//!     let epoch = window.lock_exclusive(next)?; // a put outside an epoch does not compile
//!     epoch.put(0, &[world.rank() as u64; 10])?;
//!     epoch.fetch_and_op(99, Op::Sum, 1)?;
//!     epoch.unlock()?;
//!
//!     window.fence()?; // all ranks have unlocked
//!     assert_eq!(window.local().get(99)?, 1);
//!     Ok(())
//! })?.into_iter().collect::<Result<(), _>>()?;
//! # Ok::<(), transom::Error>(())
//! ```
//!
//! Entry points:
//!
//! | to | see |
//! |---|---|
//! | start ranks | [`start`], [`threads`], [`init`], [`Launch`]; the [`variables`] that configure a job |
//! | expose memory | [`World::allocate`], [`World::create`], [`World::allocate_shared`], [`Window`] |
//! | move elements and change them atomically | [`Target`], which each epoch lends |
//! | synchronise | [`Window::fence`](windows::Window::fence), [`lock_exclusive`](windows::Window::lock_exclusive), [`lock_all`](windows::Window::lock_all), [`post`](windows::Window::post) and [`start`](windows::Window::start) |
//! | share arrays, values, flags | [`GlobalArray`], [`GlobalMutex`], [`GlobalRwLock`], [`GlobalFlags`], [`GlobalPtr`] |
//! | send messages | [`messages`]; streams of bytes: [`pipe`] |
//! | broadcast, reduce, gather | [`collective`] |
//! | work in a part of the ranks | [`World::split`], [`World::team`] |
//! | find out what failed | [`Error`], [`messages::Error`], [`log_from_env`] |
//! | check lock protocols under loom | [`locks`] |
//!
//! The pages of the repository cover the memory model, the cost of each call, and porting from MPI, OpenSHMEM and
//! SPLASH-2.
#![doc(html_root_url = "https://docs.rs/transom/0.1.0")]

mod aliases;
pub mod collective;
mod error;
pub mod messages;
pub use messages::pipe;
pub use messages::{
    Pending, Request, Requests, Scope, test_all, test_any, test_some, wait_all, wait_any, wait_any_for, wait_some,
};
pub mod provider;
mod start;
pub mod variables;
#[cfg(feature = "verbs")]
pub mod verbs;
mod world;

pub use aliases::{
    AccessEpoch, FenceEpoch, GlobalArray, GlobalFlags, GlobalMutex, GlobalRwLock, Local, LockAllEpoch, LockEpoch,
    LockRanksEpoch, ReadGuard, Signals, Target, Window, WriteGuard,
};
pub use bytemuck;
pub use error::StartError;
pub use start::{init, log_from_env, start, threads};
pub use transom_launch::bootstrap::{Bootstrap, BootstrapError, build_id};
pub use transom_launch::launcher::agent as host_agent;
pub use transom_launch::launcher::{
    BindTo, Failure, HostList, HostListError, HostSourceError, Launch, LaunchError, MapBy, Outcome, OutputPrefix,
    Status,
};
pub use transom_locks as locks;
pub use transom_locks::{QueuePosition, Rank};
pub use transom_shm_loopback as shm_loopback;
pub use transom_windows as windows;
pub use transom_windows::{
    Address, Assert, Atomic, Buffer, Counters, Distribution, Element, Error, FabricError, Flavor, GlobalPtr, Mode, Op,
    Owner, Section, array, scope,
};
pub use world::World;

/// The programs of these pages compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/design/collectives.md")]
    struct Collectives;
    #[doc = include_str!("../docs/design/channel.md")]
    struct Channel;
    #[doc = include_str!("../docs/running.md")]
    struct Running;
    #[doc = include_str!("../docs/testing-programs.md")]
    struct Testing;
    #[doc = include_str!("../docs/porting/mpi.md")]
    struct PortingMpi;
    #[doc = include_str!("../docs/porting/shmem.md")]
    struct PortingShmem;
    #[doc = include_str!("../docs/porting/pgas.md")]
    struct PortingPgas;
    #[doc = include_str!("../docs/porting/splash2.md")]
    struct PortingSplash2;
    #[doc = include_str!("../docs/tutorial.md")]
    struct Tutorial;
    #[doc = include_str!("../docs/guide/rma.md")]
    struct GuideRma;
    #[doc = include_str!("../docs/guide/arrays.md")]
    struct GuideArrays;
    #[doc = include_str!("../docs/guide/messages.md")]
    struct GuideMessages;
    #[doc = include_str!("../docs/guide/collectives.md")]
    struct GuideCollectives;
    #[doc = include_str!("../docs/guide/failures.md")]
    struct GuideFailures;
}
