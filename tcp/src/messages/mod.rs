//! Messages between ranks that share no memory: the `Wire` of `transom-channel` over connections of their own. The engine
//! of messages drives them; the service thread only accepts them.
//!
//! A rank sends on the first connection that it has with a peer, whichever of the two made it, and receives from all. If
//! both connect at once there are two. Each direction keeps to one of them, so packets arrive in order.
//!
//! A long message is a `Write`, which is sent from the sender's buffer and received into the receiver's. `Read` is not
//! supported. The rings of pipes are memory of the receiver, into which its wire copies the `Put`s that arrive.

mod gone;
mod link;
mod packet;
mod registered;
mod ring;
mod wire;

use crate::endpoint::Endpoint;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_network::{Bootstrap, NetworkWire, Node};
use transom_windows::FabricError;

/// Opens the messages of a rank.
pub fn open(
    endpoint: &Arc<Endpoint>,
    job: &Arc<dyn Bootstrap>,
    node: &Node,
    asked: &Changes,
) -> Result<(Box<dyn NetworkWire>, Config), FabricError> {
    let wire = wire::TcpWire::open(endpoint, job, node);
    let wire = wire.map_err(|source| FabricError::System { what: "opening messages over TCP".into(), source })?;
    // A ring would take as many packets as a queue. The round trip of a rendezvous takes longer than two copies of a
    // message up to this length.
    let config = Config { rings: 0, eager: 64 << 10, ..Config::default() };
    Ok((Box::new(wire), asked.of(config)))
}
