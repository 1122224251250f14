//! The transport of a rank's messages, selected at each call.

use super::asked::MESSAGES;
use super::error::Error;
use crate::provider::{self, Provider};
use transom_channel::ring::RingConfig;
use transom_channel::{Changes, Config, Misconfigured};
use transom_shm_loopback::messages::ShmWire;
use transom_windows::OobExchange;

pub(super) use transom_network::Transport;

/// The transport of this rank, with configurations that suit it and TRANSOM_MESSAGES.
pub(super) struct Opened {
    pub wire: Transport,
    /// Configuration for peers on other hosts.
    pub config: Config,
    /// Configuration for peers on this host.
    pub near: Config,
}

/// Bytes that all ranks of a machine together may send to one rank before it has received from any, and the most of one
/// rank.
const UNHEARD: (usize, usize) = (4 << 20, 64 << 10);

/// Opens the transport of a rank. Called once for each rank of a job.
pub(super) fn open(provider: &Provider) -> Result<Opened, Error> {
    let asked = MESSAGES.get::<Changes>();
    let asked = asked.map_err(|error| Error::Unavailable { why: error.to_string() })?.unwrap_or_default();
    // A slot holds any message that is sent eagerly, or a packet of a longer one. There are more slots than packets in
    // flight, so that no packet needs a cell of the inbox: a cell is slower than a wait for a slot. There are eight
    // times as many, since a slot is slow to write while both processors' caches have its lines. In a ring of 4 MiB,
    // the lines have moved to the shared cache before the slot is reused.
    let ring = RingConfig { slots: 256, bytes: 16_704 };
    // Messages longer than `eager` are read in place: one copy takes less time than a credit and packets.
    let near = asked.of(Config { ring, window: 32, eager: 16 << 10, zero_copy_from: 16 << 10, ..Config::default() });
    // SAFETY: only the engine drives the transport.
    if let Some((wire, config)) = unsafe { provider::transport(provider, &asked) }? {
        return Ok(Opened { wire, config, near });
    }
    let job = provider::shared_memory(provider).expect("the other providers share memory");
    // SAFETY: only the engine drives the transport.
    let wire = unsafe { ShmWire::open(job) }?;
    let wire = Transport::Memory(wire);
    // The first message to a rank may then be as long as later eager ones. Between hosts, that would cost each rank a
    // buffer of the adapter.
    let (all, most) = UNHEARD;
    let floor = (all / job.size()).clamp(near.floor as usize, most) as u32;
    let config = Config { floor, ..near };
    Ok(Opened { wire, near: config.clone(), config })
}

/// The error for a configuration that the engine refuses.
pub(super) fn misconfigured(error: Misconfigured) -> Error {
    Error::Unavailable { why: format!("TRANSOM_MESSAGES: {error}") }
}
