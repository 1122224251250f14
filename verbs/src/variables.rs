//! Environment variables that select and configure the RDMA device. All have sensible defaults.

use crate::values::{Mtu, Partition, Places, Timeout, Within, WordWrite};
use transom_launch::variables::{SetBy, Variable, readable};

/// All variables of this crate.
pub const TABLE: &[Variable] = &[
    DEVICE,
    PORT,
    GID,
    MTU,
    SL,
    TRAFFIC_CLASS,
    PKEY,
    DEPTH,
    INLINE,
    CONNECTIONS,
    ZCOPY_MIN,
    REGCACHE_BYTES,
    TIMEOUT,
    RETRY,
    WORD_WRITE,
];

/// Devices, ports and GIDs of the rails.
pub const DEVICE: Variable = Variable {
    name: "TRANSOM_VERBS_DEVICE",
    set_by: SetBy::User,
    meaning: "rails (RDMA ports) of each rank, in order; large messages, puts and gets are divided among them",
    expected: "up to 4 of DEVICE, DEVICE:PORT or DEVICE:PORT:GID_INDEX, separated by commas, e.g. `mlx5_0`, `mlx5_0:2` \
               or `mlx5_0:2:3`; `ibv_devices` lists devices",
    default: "the fastest ports in networks that all ranks share, near ones first; ranks of a host begin with \
              different ones",
    check: readable::<Places>,
};

/// Port of devices that are named without one.
pub const PORT: Variable = Variable {
    name: "TRANSOM_VERBS_PORT",
    set_by: SetBy::User,
    meaning: "port of each RDMA device that TRANSOM_VERBS_DEVICE names without a port",
    expected: "a number from 1 to 254",
    default: "the first active port",
    check: readable::<Within<1, 254>>,
};

/// GID of ports that are named without one.
pub const GID: Variable = Variable {
    name: "TRANSOM_VERBS_GID",
    set_by: SetBy::User,
    meaning: "GID index of each port that TRANSOM_VERBS_DEVICE names without one",
    expected: "a number from 0 to 255",
    default: "RoCE: the first GID of RoCE v2 with IPv4, else of RoCE v2; InfiniBand: none (the LID suffices)",
    check: readable::<Within<0, 255>>,
};

/// Largest MTU.
pub const MTU: Variable = Variable {
    name: "TRANSOM_VERBS_MTU",
    set_by: SetBy::User,
    meaning: "largest packet (path MTU), in bytes",
    expected: "256, 512, 1024, 2048 or 4096",
    default: "the smaller active MTU of both ports",
    check: readable::<Mtu>,
};

/// Service level of packets.
pub const SL: Variable = Variable {
    name: "TRANSOM_VERBS_SL",
    set_by: SetBy::User,
    meaning: "service level (SL) of packets",
    expected: "a number from 0 to 15",
    default: "0",
    check: readable::<Within<0, 15>>,
};

/// Traffic class of packets with a GRH.
pub const TRAFFIC_CLASS: Variable = Variable {
    name: "TRANSOM_VERBS_TRAFFIC_CLASS",
    set_by: SetBy::User,
    meaning: "traffic class of packets with a global routing header; on RoCE, the DSCP times 4",
    expected: "a number from 0 to 255",
    default: "RoCE v2: that of the port (`/sys/class/infiniband/DEVICE/tc/PORT/traffic_class`), else 106; otherwise 0",
    check: readable::<Within<0, 255>>,
};

/// Partition of the port.
pub const PKEY: Variable = Variable {
    name: "TRANSOM_VERBS_PKEY",
    set_by: SetBy::User,
    meaning: "partition key of the port",
    expected: "a number from 1 to 65535, e.g. `0x8001`",
    default: "the first key of the port that is a full member of its partition, else the first",
    check: readable::<Partition>,
};

/// Depth of a connection's queue.
pub const DEPTH: Variable = Variable {
    name: "TRANSOM_VERBS_DEPTH",
    set_by: SetBy::User,
    meaning: "largest number of operations in flight between two ranks",
    expected: "a number from 4 to 32768",
    default: "128, less if the device has less",
    check: readable::<Within<4, 32768>>,
};

/// Largest inline put.
pub const INLINE: Variable = Variable {
    name: "TRANSOM_VERBS_INLINE",
    set_by: SetBy::User,
    meaning: "largest put that is sent inline, in bytes",
    expected: "a number from 0 to 4096",
    default: "128, less if the device has less",
    check: readable::<Within<0, 4096>>,
};

/// Number of connections beyond which idle ones are given up.
pub const CONNECTIONS: Variable = Variable {
    name: "TRANSOM_VERBS_CONNECTIONS",
    set_by: SetBy::User,
    meaning: "number of connections of a rank, on each rail, beyond which it gives up idle ones",
    expected: "a number from 1 to 4294967295",
    default: "three quarters of the queue pairs of the device, divided by the ranks that use it, less 2",
    check: readable::<Within<1, { u32::MAX }>>,
};

/// Smallest transfer whose memory is registered.
pub const ZCOPY_MIN: Variable = Variable {
    name: "TRANSOM_VERBS_ZCOPY_MIN",
    set_by: SetBy::User,
    meaning: "smallest put or get whose memory is registered instead of copied, in bytes",
    expected: "a number from 32768 to 4294967295",
    default: "131072",
    check: readable::<Within<32_768, { u32::MAX }>>,
};

/// Limit of idle registrations of message buffers.
pub const REGCACHE_BYTES: Variable = Variable {
    name: "TRANSOM_VERBS_REGCACHE_BYTES",
    set_by: SetBy::User,
    meaning: "limit of persistent and partitioned send buffers that stay registered between messages, in bytes",
    expected: "a number from 0 to 4294967295",
    default: "268435456",
    check: readable::<Within<0, { u32::MAX }>>,
};

/// Time before a packet is retransmitted.
pub const TIMEOUT: Variable = Variable {
    name: "TRANSOM_VERBS_TIMEOUT",
    set_by: SetBy::User,
    meaning: "time after which an unacknowledged packet is retransmitted",
    expected: "seconds above 0, e.g. `0.25`",
    default: "0.25",
    check: readable::<Timeout>,
};

/// Number of retransmissions before a connection breaks.
pub const RETRY: Variable = Variable {
    name: "TRANSOM_VERBS_RETRY",
    set_by: SetBy::User,
    meaning: "number of retransmissions of a packet before the connection counts as broken and is restored",
    expected: "a number from 0 to 7; 7 means no limit on Soft-RoCE",
    default: "7",
    check: readable::<Within<0, 7>>,
};

/// Order of writes that is relied on.
pub const WORD_WRITE: Variable = Variable {
    name: "TRANSOM_VERBS_WORD_WRITE",
    set_by: SetBy::User,
    meaning: "method of writing a word that follows data: an RDMA write, which is correct only if adapters and fabric keep \
              writes in order, or compare-and-swap; all ranks use the latter if one needs it",
    expected: "`auto`, `write` or `atomic`; `atomic` sends each message in a ring with an immediate value",
    default: "auto: compare-and-swap, and completion flags within messages if the device promises order within a write",
    check: readable::<WordWrite>,
};
