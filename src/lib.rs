#![doc = include_str!("../README.md")]

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
pub use transom_launch::bootstrap::{Bootstrap, BootstrapError};
pub use transom_launch::launcher::{Failure, HostList, HostListError, Launch, LaunchError, Outcome, Status, Tag};
pub use transom_locks as locks;
pub use transom_locks::{Ahead, Rank};
pub use transom_shm_loopback as shm_loopback;
pub use transom_windows as windows;
pub use transom_windows::{
    Address, Assert, Atomic, Buffer, Counters, Distribution, Error, FabricError, Flavor, GlobalPtr, Mode, Op, Owner,
    Section, array, scope,
};
pub use world::World;

/// The programs of these pages compile and run.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/COLLECTIVES.md")]
    struct Collectives;
    #[doc = include_str!("../docs/MESSAGES.md")]
    struct Messages;
    #[doc = include_str!("../docs/PIPES.md")]
    struct Pipes;
    #[doc = include_str!("../docs/TESTING.md")]
    struct Testing;
    #[doc = include_str!("../PORTING.md")]
    struct Porting;
}
