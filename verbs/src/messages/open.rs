//! Opens the wire of a rank with the configuration that suits it.

use super::wire::VerbsWire;
use crate::connect::Service;
use std::sync::Arc;
use transom_channel::delivery::{Delivery, HEADER, Settings};
use transom_channel::ring::RingConfig;
use transom_channel::wire::SHORTEST;
use transom_channel::{Changes, Config, Paths};
use transom_network::{Bootstrap, NetworkWire};
use transom_shm_loopback::Loopback;
use transom_windows::FabricError;

/// Opens the messages of a rank: over connections, or also over datagrams. Fails if the device has no shared receive
/// queues, or its MTU is too small for datagrams.
pub(crate) fn open(
    service: &Arc<Service>,
    exchange: &Arc<dyn Bootstrap>,
    here: &Loopback,
    asked: &Changes,
) -> Result<(Box<dyn NetworkWire>, Config), FabricError> {
    let wire = VerbsWire::open(service, exchange, here)?;
    let zero_copy_from = wire.zero_copy_from() as u64;
    // A slot has room for every message that is sent eagerly.
    let ring = RingConfig { slots: 32, bytes: 8256 };
    let mut config = Config { ring, zero_copy_from, ..Config::default() };
    let Config { checksum, paths, .. } = asked.of(config.clone());
    // A waiting thread may sleep for half a millisecond between two polls.
    let settings = Settings { floor: 2_000_000, checksum, ..Settings::default() };
    let (room, longest) = match wire.datagrams() {
        Some(datagrams) => datagrams,
        None if checksum => return Ok((Box::new(Delivery::new(wire, settings)), asked.of(config))),
        None => return Ok((Box::new(wire), asked.of(config))),
    };
    let settings = Settings { room: room.into(), ..settings };
    if longest < SHORTEST + HEADER {
        let why = "TRANSOM_MESSAGES: datagrams (paths=ud, paths=both) need an MTU of 1024 bytes at least; see TRANSOM_VERBS_MTU";
        return Err(FabricError::Misuse { why: why.into() });
    }
    if paths == Paths::Datagrams {
        // Datagrams make rings unnecessary, unless the program asks for them.
        config.rings = 0;
    }
    let has_several = wire.mailboxes.len() > 1;
    config = asked.of(config);
    if paths == Paths::Datagrams && has_several && config.rings > 0 {
        tracing::warn!("no rings: with paths=ud and several rails, messages in rings would not survive the first rail");
        config.rings = 0;
    }
    Ok((Box::new(Delivery::new(wire, settings)), config))
}
