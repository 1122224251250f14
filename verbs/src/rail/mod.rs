//! A rail: a port of a device, with the resources that this rank created on it: a protection domain, and completion
//! queues for its lanes.

mod choose;
mod health;
mod pairing;
mod place;
mod queues;
mod survey;
mod trial;
mod writes;

pub(super) use choose::{FULL_MEMBER, Link};
pub(super) use health::{Broken, Health};
pub(super) use pairing::Offer;
pub(super) use queues::Polled;
pub(super) use survey::Survey;
pub(super) use trial::SHARED_RECEIVES;
pub(super) use writes::Writes;

use super::VerbsError;
use super::settings::Settings;
use super::sys::{
    Capacity, CompletionQueue, Context, Domain, FarEnd, GlobalPath, NearEnd, Path, QueuePair, SharedQueue,
};
use super::values::WordWrite;
use super::wr::WorkQueue;
use choose::Choice;
use ibverbs_sys::ibv_mtu;
use place::Place;
use queues::Queues;
use std::sync::Arc;

/// A rail of this rank.
pub(super) struct Rail {
    pub domain: Arc<Domain>,
    pub queues: Queues,
    pub health: Arc<Health>,
    /// Properties of the adapter's writes; after start, the least capable of all ranks.
    pub writes: Writes,
    /// Smallest transfer whose memory is registered for it, in bytes.
    pub register_from: usize,
    /// Most bytes of message buffers that stay registered after use.
    pub keep: usize,
    /// Bandwidth reported by the port, in Mb/s; 0 if unknown.
    pub bandwidth: u32,
    /// Number of connections to other ranks beyond which idle ones are given up.
    pub most_connections: usize,
    choice: Choice,
    capacity: Capacity,
    service_level: u8,
    traffic_class: u8,
    timeout: u8,
    retries: u8,
}

/// A rail of a rank, as [`Verbs::rails`](crate::Verbs::rails) reports it.
///
/// # Examples
/// See [`Verbs`](crate::Verbs).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RailInfo {
    /// The entry of `TRANSOM_VERBS_DEVICE` that selects this rail: `DEVICE:PORT:GID_INDEX`, or `DEVICE:PORT` if packets
    /// have no global routing header (InfiniBand).
    pub name: String,
    /// The port is an Ethernet port.
    pub is_roce: bool,
}

/// Vendor number of Soft-RoCE devices.
const SOFT_ROCE: u32 = 0xff_ffff;
/// Vendor numbers of NVIDIA (formerly Mellanox): OUI and PCI.
const MELLANOX: u32 = 0x02c9;
const MELLANOX_PCI: u32 = 0x15b3;
impl Rail {
    fn new(context: Context, choice: Choice, settings: &Settings) -> Result<Self, VerbsError> {
        let context = Arc::new(context);
        let limits = &context.limits;
        let traffic_class = traffic_class(settings.traffic_class, choice.link, || context.traffic_class(choice.port));
        let most = limits.max_qp_wr.min(limits.max_cqe).max(4) as u32;
        let depth = settings.depth.min(most);
        let health = Arc::default();
        let mut rail = Rail {
            queues: Queues::new(&context, &health, depth),
            domain: Arc::new(Domain::new(context)?),
            health,
            writes: Writes::promised(settings.word_write, false),
            register_from: settings.register_from as usize,
            keep: settings.keep as usize,
            bandwidth: choice.rate,
            most_connections: settings.connections.map_or(usize::MAX, |most| most as usize),
            choice,
            capacity: Capacity { depth, receives: 1, inline: settings.inline, scatter: 1 },
            service_level: settings.service_level,
            traffic_class,
            timeout: settings.timeout_exponent(),
            retries: settings.retries,
        };
        if settings.word_write != WordWrite::Atomic {
            let in_order = rail.writes_in_order().unwrap_or_else(|error| {
                tracing::info!(rail = rail.describe(), %error, "the order of writes is unknown");
                false
            });
            rail.writes = Writes::promised(settings.word_write, in_order);
        }
        tracing::info!(rail = rail.describe(), writes = ?rail.writes, "RDMA device opened");
        Ok(rail)
    }

    /// Limits connections to a share of the adapter's queue pairs, unless the user has set a limit. `users`: ranks that
    /// use the adapter, each counted once per rail.
    pub fn share_connections(&mut self, users: usize) {
        if self.most_connections == usize::MAX {
            self.most_connections = share(self.most_queue_pairs(), users);
        }
    }

    /// Number of queue pairs that the device reports at most.
    pub fn most_queue_pairs(&self) -> usize {
        self.context().limits.max_qp.max(1) as usize
    }

    /// Asks the device, by a queue pair connected to itself, whether the bytes of a write become visible in order.
    fn writes_in_order(&self) -> Result<bool, VerbsError> {
        self.connected_to_itself().map(|(queue, _)| queue.writes_in_order())
    }

    /// A queue pair that is connected to itself, for one request at a time.
    fn connected_to_itself(&self) -> Result<(QueuePair, Arc<CompletionQueue>), VerbsError> {
        let completions = Arc::new(CompletionQueue::new(self.context(), 1)?);
        let capacity = Capacity { depth: 1, receives: 1, inline: 0, scatter: 1 };
        let queue = QueuePair::reliable(&self.domain, [&completions, &completions], None, capacity)?;
        let near = self.near_end(0);
        queue.initialise(&near)?;
        let path = self.path(self.gid(), self.lid());
        queue.connect(
            &near,
            &FarEnd { path, mtu: self.mtu(), queue_pair: queue.number(), psn: 0, served: 1, initiated: 1 },
        )?;
        Ok((queue, completions))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }

    pub fn name(&self) -> &str {
        &self.context().name
    }

    /// Identifies the adapter. Atomics are atomic with respect to each other only on the same adapter.
    pub fn adapter(&self) -> u64 {
        self.context().guid
    }

    pub fn port(&self) -> u8 {
        self.choice.port
    }

    pub fn gid(&self) -> [u8; 16] {
        self.choice.gid.raw
    }

    pub fn lid(&self) -> u16 {
        self.choice.lid
    }

    /// The GID and LID that the port has now. Those `before`, as far as the device does not answer.
    pub fn present_address(&self, before: ([u8; 16], u16)) -> ([u8; 16], u16) {
        let Choice { port, gid, .. } = self.choice;
        let context = self.context();
        (context.gid(port, gid.index).unwrap_or(before.0), context.port(port).map_or(before.1, |port| port.lid))
    }

    pub fn mtu(&self) -> ibv_mtu {
        self.choice.mtu
    }

    /// The partition key of the port that is used.
    pub fn pkey(&self) -> u16 {
        self.choice.pkey
    }

    /// Returns whether packets carry a GRH.
    pub fn is_global(&self) -> bool {
        self.choice.global
    }

    pub fn link(&self) -> Link {
        self.choice.link
    }

    /// Returns whether the adapter executes atomics that are atomic at least with respect to each other.
    pub fn has_atomics(&self) -> bool {
        self.context().has_atomics()
    }

    /// Most reads and atomics per queue pair that the adapter has in flight, and that it serves.
    pub fn initiated_and_served(&self) -> [u8; 2] {
        let limits = &self.context().limits;
        [limits.max_qp_init_rd_atom, limits.max_qp_rd_atom].map(|most| most.clamp(1, 16) as u8)
    }

    pub fn info(&self) -> RailInfo {
        let Choice { port, gid, global, link, .. } = self.choice;
        let name = format!("{}:{port}", self.name());
        // A named GID adds a global routing header to the packets.
        let name = if global { format!("{name}:{}", gid.index) } else { name };
        RailInfo { name, is_roce: link != Link::InfiniBand }
    }

    /// A one-line description.
    pub fn describe(&self) -> String {
        let Choice { port, mtu, gid, link, lid, pkey, .. } = self.choice;
        let link = if link == Link::InfiniBand { "InfiniBand" } else { "RoCE" };
        let atomics = if self.has_atomics() { "atomics" } else { "no atomics, so that windows are not available" };
        let place = match self.choice.place {
            Place::Near => ", near this rank's cores",
            Place::Far => ", far from this rank's cores",
            Place::Unknown => "",
        };
        let (name, address) = (self.name(), std::net::Ipv6Addr::from(gid.raw));
        format!(
            "{name}, port {port}{place}, {link}, GID index {} ({address}), LID {lid}, MTU {}, partition {pkey:#06x}, \
             {atomics}",
            gid.index,
            128 << mtu
        )
    }

    /// The path to a peer's port.
    pub fn path(&self, gid: [u8; 16], lid: u16) -> Path {
        let (source, traffic_class) = (self.choice.gid.index, self.traffic_class);
        let global = self.choice.global.then_some(GlobalPath { gid, source, traffic_class });
        Path { port: self.choice.port, lid, service_level: self.service_level, global }
    }

    /// This end of a connection with the given first PSN.
    pub fn near_end(&self, psn: u32) -> NearEnd {
        let (pkey_index, timeout, retries) = (self.choice.pkey_index, self.timeout, self.retries);
        NearEnd { port: self.choice.port, pkey_index, psn, timeout, retries }
    }

    /// Creates an unconnected queue pair for a lane. Requests complete on `polled`. Messages arrive at the shared
    /// queue, if there is one, and complete on `received`.
    pub fn queue_pair(
        &self,
        polled: &Polled,
        received: &Arc<CompletionQueue>,
        shared: Option<&Arc<SharedQueue>>,
    ) -> Result<QueuePair, VerbsError> {
        let mut queue = QueuePair::reliable(&self.domain, [&polled.queue, received], shared, self.capacity)?;
        if self.context().limits.vendor_id == SOFT_ROCE {
            // If a write is retransmitted after a lost acknowledgement, Soft-RoCE acknowledges everything executed
            // since. A later atomic whose answer was lost too would complete without its result.
            queue.leave_fences();
        }
        queue.initialise(&self.near_end(0))?;
        Ok(queue)
    }

    /// The way in which a queue pair of this device reports its final received position. mlx4, mlx5 and Soft-RoCE read
    /// it from the device; irdma, for example, returns the initial value.
    pub fn last_word(&self) -> LastWord {
        match self.context().limits.vendor_id {
            SOFT_ROCE => LastWord::Reset,
            MELLANOX | MELLANOX_PCI => LastWord::Event,
            _ => LastWord::None,
        }
    }
}

/// A user's share of an adapter's queue pairs, for connections to other ranks. A quarter is left for connections that
/// are made before idle ones have been given up, and for other jobs.
fn share(queue_pairs: usize, users: usize) -> usize {
    // Each user also has a queue pair for connection requests, and one to itself.
    (queue_pairs / 4 * 3 / users.max(1)).saturating_sub(2).max(1)
}

/// The event after which a failed queue pair executes nothing more, so that its received position is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastWord {
    /// The device reports "last WQE reached".
    Event,
    /// The queue pair is reset: the driver waits for the packet being processed and keeps the next expected PSN.
    /// (Soft-RoCE reports no event before Linux 6.6.)
    Reset,
    /// The final position is never available.
    None,
}

/// Traffic class of RoCE v2 packets that most lossless networks expect: DSCP 26, ECN-capable.
const LOSSLESS: u8 = 106;

/// The traffic class of packets: the user's, or on RoCE v2 that of the port or else [`LOSSLESS`].
fn traffic_class(set: Option<u8>, link: Link, of_port: impl FnOnce() -> Option<u8>) -> u8 {
    match link {
        Link::RoceV2 => set.or_else(of_port).unwrap_or(LOSSLESS),
        Link::InfiniBand | Link::RoceV1 => set.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_shared_among_the_users_of_an_adapter() {
        assert_eq!(
            [(131_072, 64), (32, 5), (1, 1), (8, 100), (8, 0)].map(|(pairs, users)| share(pairs, users)),
            [1534, 2, 1, 1, 4]
        );
    }

    #[test]
    fn traffic_class_is_set_by_user_port_or_link() {
        let class = |set, link, of_port| traffic_class(set, link, || of_port);
        assert_eq!(class(Some(0), Link::RoceV2, Some(96)), 0);
        assert_eq!(class(None, Link::RoceV2, Some(96)), 96);
        assert_eq!(class(None, Link::RoceV2, None), 106);
        assert_eq!([Link::InfiniBand, Link::RoceV1].map(|link| class(None, link, Some(96))), [0, 0]);
        assert_eq!(class(Some(7), Link::InfiniBand, None), 7);
    }
}
