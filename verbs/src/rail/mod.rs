//! A rail: a port of a device, with the resources that this rank created on it: a protection domain, and completion
//! queues for its lanes.

mod choose;
mod health;
mod queues;
mod writes;

pub(super) use choose::{FULL_MEMBER, Link};
pub(super) use health::{Broken, Health};
pub(super) use queues::Polled;
pub(super) use writes::Writes;

use super::VerbsError;
use super::settings::Settings;
use super::sys::{
    Capacity, CompletionQueue, Context, Domain, FarEnd, GlobalPath, Listed, NearEnd, Path, QueuePair, SharedQueue,
    devices,
};
use super::values::WordWrite;
use super::wr::WorkQueue;
use choose::{Candidate, Choice, Gid, Port, choose, choose_all};
use ibverbs_sys::*;
use queues::Queues;
use std::sync::Arc;
use transom_channel::Paths;

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
    choice: Choice,
    capacity: Capacity,
    service_level: u8,
    traffic_class: u8,
    timeout: u8,
    retries: u8,
}

/// Vendor number of Soft-RoCE devices.
const SOFT_ROCE: u32 = 0xff_ffff;
/// Vendor numbers of NVIDIA (formerly Mellanox): OUI and PCI.
const MELLANOX: u32 = 0x02c9;
const MELLANOX_PCI: u32 = 0x15b3;
/// Port flag: the subnet requires a GRH.
const GRH_REQUIRED: u8 = 1;

impl Rail {
    /// Opens the rails that the settings name; without names, the first active port and all similar ones.
    pub fn open(settings: &Settings) -> Result<Vec<Self>, VerbsError> {
        let listed = devices()?;
        let rails = match &settings.named[..] {
            [] => {
                let (mut opened, candidates) = survey(&listed, settings);
                let open = |choice: Choice| {
                    // Each rail has its own context.
                    let context = opened[choice.device].take().map_or_else(|| listed[choice.device].open(), Ok)?;
                    Self::new(context, choice, settings)
                };
                choose_all(settings, &candidates)?.into_iter().map(open).collect::<Result<Vec<_>, _>>()?
            }
            named => {
                // Datagrams use a single rail. Any other excess is reported when messages start.
                let most = if settings.paths == Paths::Datagrams { 1 } else { named.len() };
                let open = |place| Self::named(&listed, &settings.at(place));
                named.iter().take(most).map(open).collect::<Result<Vec<_>, _>>()?
            }
        };
        let place = |rail: &Rail| (rail.name().to_owned(), rail.port(), rail.choice.gid.index);
        let twice = |(at, rail): (usize, &Rail)| rails[..at].iter().any(|before| place(before) == place(rail));
        if let Some((_, rail)) = rails.iter().enumerate().find(|rail| twice(*rail)) {
            let (name, port, gid) = place(rail);
            let what = format!("TRANSOM_VERBS_DEVICE: {name}:{port}:{gid} is listed twice");
            return Err(VerbsError::unusable(what, "name another device, port or address for each rail".into()));
        }
        Ok(rails)
    }

    /// Opens a named device, with its port and GID as far as they are named.
    fn named(listed: &[Listed], settings: &Settings) -> Result<Self, VerbsError> {
        let wanted = settings.place.device.as_deref().unwrap_or_default();
        let Some(device) = listed.iter().find(|device| device.name == wanted) else {
            let there = listed.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
            let why = if there.is_empty() {
                "this machine has none".to_owned()
            } else {
                format!("available: {}", there.join(", "))
            };
            return Err(VerbsError::unusable(format!("TRANSOM_VERBS_DEVICE={wanted}: no such RDMA device"), why));
        };
        // A device named by the user is never replaced.
        let (context, candidate) = look(device, settings)?;
        let choice = choose(settings, &[Ok(candidate)])?;
        Self::new(context, choice, settings)
    }

    fn new(context: Context, choice: Choice, settings: &Settings) -> Result<Self, VerbsError> {
        let context = Arc::new(context);
        let limits = &context.limits;
        let asked = context.port(choice.port)?;
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
            bandwidth: bandwidth(asked.active_width.into(), asked.active_speed.into()),
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

    /// Asks the device, by a queue pair connected to itself, whether the bytes of a write become visible in order.
    fn writes_in_order(&self) -> Result<bool, VerbsError> {
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
        Ok(queue.writes_in_order())
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
        has_atomics(&self.context().limits)
    }

    /// Most reads and atomics per queue pair that the adapter has in flight, and that it serves.
    pub fn initiated_and_served(&self) -> [u8; 2] {
        let limits = &self.context().limits;
        [limits.max_qp_init_rd_atom, limits.max_qp_rd_atom].map(|most| most.clamp(1, 16) as u8)
    }

    /// A one-line description.
    pub fn describe(&self) -> String {
        let Choice { port, mtu, gid, link, lid, pkey, .. } = self.choice;
        let link = if link == Link::InfiniBand { "InfiniBand" } else { "RoCE" };
        let atomics = if self.has_atomics() { "atomics" } else { "no atomics, so that windows are not available" };
        let (name, address) = (self.name(), std::net::Ipv6Addr::from(gid.raw));
        format!(
            "{name}, port {port}, {link}, GID index {} ({address}), LID {lid}, MTU {}, partition {pkey:#06x}, {atomics}",
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

/// Bandwidth in Mb/s for a port's width and speed codes of the InfiniBand specification.
fn bandwidth(width: u32, speed: u32) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let each = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * each
}

fn has_atomics(limits: &ibv_device_attr) -> bool {
    limits.atomic_cap != IBV_ATOMIC_NONE
}

/// Examines all devices; opens those that are usable.
fn survey(listed: &[Listed], settings: &Settings) -> (Vec<Option<Context>>, Vec<Result<Candidate, VerbsError>>) {
    let looked = listed.iter().map(|device| match look(device, settings) {
        Ok((context, candidate)) => (Some(context), Ok(candidate)),
        Err(error) => (None, Err(error)),
    });
    looked.unzip()
}

/// Opens a device and reads the facts for the selection.
fn look(device: &Listed, settings: &Settings) -> Result<(Context, Candidate), VerbsError> {
    let context = device.open()?;
    let ports = 1..=context.limits.phys_port_cnt.max(1);
    let ports = ports.map(|port| look_at_port(&context, port, settings)).collect::<Result<_, _>>()?;
    let (name, vendor) = (device.name.clone(), context.limits.vendor_id);
    let candidate = Candidate { name, atomics: has_atomics(&context.limits), vendor, ports };
    Ok((context, candidate))
}

fn look_at_port(context: &Context, port: u8, settings: &Settings) -> Result<Port, VerbsError> {
    let asked = context.port(port)?;
    let ethernet = u32::from(asked.link_layer) == IBV_LINK_LAYER_ETHERNET;
    // Each lookup is a system call. On InfiniBand the first GID suffices unless one is requested.
    let gids = if ethernet || settings.place.gid.is_some() { asked.gid_tbl_len.clamp(0, 256) } else { 1 };
    let mut pkeys: Vec<(u16, u16)> = Vec::new();
    for index in 0..asked.pkey_tbl_len {
        pkeys.extend(context.pkey(port, index).map(|pkey| (index, pkey)));
        // Most ports are full members of their first partition.
        if settings.pkey.is_none() && pkeys.last().is_some_and(|(_, pkey)| pkey & FULL_MEMBER != 0) {
            break;
        }
    }
    let gid = |index: u8| {
        let raw = context.gid(port, index)?;
        Some(Gid { index, raw, v2: ethernet && context.gid_is_v2(port, index) })
    };
    Ok(Port {
        number: port,
        state: asked.state,
        lid: asked.lid,
        mtu: asked.active_mtu,
        ethernet,
        global: asked.flags & GRH_REQUIRED != 0,
        gids: (0..gids).filter_map(|index| gid(index as u8)).collect(),
        pkeys,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_follows_width_and_speed() {
        assert_eq!([bandwidth(2, 32), bandwidth(1, 1), bandwidth(8, 4)], [100_000, 2_500, 120_000]);
        assert_eq!([bandwidth(3, 1), bandwidth(1, 0)], [0, 0]);
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

    #[test]
    fn atomics_follow_the_device_capability() {
        let device = |atomic_cap| ibv_device_attr { atomic_cap, ..Default::default() };
        assert!(!has_atomics(&device(IBV_ATOMIC_NONE)));
        assert!(has_atomics(&device(IBV_ATOMIC_HCA)) && has_atomics(&device(IBV_ATOMIC_GLOB)));
    }
}
