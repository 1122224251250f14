//! Connections on demand: whoever first needs a peer asks it by a datagram, and a thread of the peer answers, whatever
//! the program does meanwhile. [`machine`] is what both agree by, [`message`] what they say, [`service`] the thread.

mod address;
mod core;
#[cfg(test)]
mod explore;
mod machine;
mod message;
mod service;

pub(super) use core::Core;

use super::VerbsError;
use super::datagram::{Datagrams, Destination};
use super::device::Device;
use super::engine::Engine;
use super::queue::{initiator_depth, responder_resources};
use super::settings::Settings;
use address::Address;
use message::MESSAGE;
use service::{Service, random};
use std::sync::Arc;
use std::thread::JoinHandle;
use transom_locks::Rank;
use transom_windows::Exchange;

/// An endpoint: a device, the queue pairs of this rank, and the thread that answers. All that a rank's teams share.
pub(super) struct Endpoint {
    pub core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Collective: opens the device and tells all others where this rank is.
    pub fn new(job: &dyn Exchange, settings: Settings) -> Result<Self, VerbsError> {
        let made = Self::prepare(&settings, job.rank(), job.size());
        let mine = made.as_ref().map_or(Vec::new(), |(_, _, _, address)| address.to_bytes());
        let theirs = job.all_gather(&mine)?;
        let (device, engine, datagrams, _) = made?;
        let mut addresses = Vec::with_capacity(theirs.len());
        for (rank, theirs) in theirs.iter().enumerate() {
            addresses.push(Address::from_bytes(theirs).ok_or(VerbsError::Peer { rank })?);
        }
        let core = Arc::new(Core::new(job.rank(), device, engine, settings)?);
        let service = Service::new(core.clone(), datagrams, addresses.into());
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || service.run());
        let thread = thread.map_err(|source| VerbsError::system("a thread that answers peers", source))?;
        Ok(Endpoint { core, thread: Some(thread) })
    }

    #[allow(clippy::type_complexity, reason = "named where it is taken apart")]
    fn prepare(
        settings: &Settings,
        me: Rank,
        ranks: usize,
    ) -> Result<(Arc<Device>, Engine, Datagrams<MESSAGE>, Address), VerbsError> {
        let device = Arc::new(Device::open(settings)?);
        let engine = Engine::new(&device, settings, me, ranks)?;
        // Keys whose highest bit is set are the system's own.
        let key = u32::from_le_bytes(random()?) & 0x7fff_ffff;
        let datagrams = Datagrams::new(&device, settings.service_level, key)?;
        let queue_pair = datagrams.queue_pair();
        let address = Address {
            datagrams: Destination { gid: device.gid, lid: device.lid, queue_pair, key },
            secret: random()?,
            mtu: device.mtu as u8,
            responder_resources: responder_resources(&device.limits),
            initiator_depth: initiator_depth(&device.limits),
        };
        Ok((device, engine, datagrams, address))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.core.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
