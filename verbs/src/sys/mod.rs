//! Safe wrappers of libibverbs objects. Each is destroyed when dropped, after the objects that were created from it. No
//! policy.

mod address;
mod completion;
mod device;
mod domain;
mod events;
mod library;
mod queue_pair;
mod shared_queue;

pub(crate) use address::{AddressHandle, GlobalPath, Path};
pub(crate) use completion::CompletionQueue;
pub(crate) use device::{Context, Listed, devices};
pub(crate) use domain::{Access, Domain, Registered};
#[cfg(test)]
pub(crate) use events::AddressChange;
pub(crate) use events::Event;
pub(crate) use queue_pair::{Capacity, Datagrams, FarEnd, NearEnd, QueuePair};
pub(crate) use shared_queue::SharedQueue;

use super::VerbsError;
use std::io::Error;

/// The error of the libibverbs function that just failed.
fn refused(what: String) -> VerbsError {
    VerbsError::system(what, Error::last_os_error())
}
