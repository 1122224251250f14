//! The variables that say which device is used, and how. Each has a default that is chosen well.

use crate::values::{Choice, Mtu, NotifyBy, Partition, Places, Timeout, Within};
use transom_launch::variables::{SetBy, Variable, readable};

/// The variables of this crate.
pub const TABLE: &[Variable] =
    &[DEVICE, PORT, GID, MTU, SL, TRAFFIC_CLASS, PKEY, DEPTH, INLINE, REGISTER, KEEP, TIMEOUT, RETRY, NOTIFY];

/// TRANSOM_VERBS_DEVICE.
pub const DEVICE: Variable = Variable {
    name: "TRANSOM_VERBS_DEVICE",
    set_by: SetBy::User,
    meaning: "the rails of each rank, in order: large messages, puts and gets are divided among all",
    expected: "up to 4, with commas between them: a name that `ibv_devices` lists, e.g. `mlx5_0`, or with the number of a port \
               behind it, `mlx5_0:2`, or with the index of an address of that port as well, `mlx5_0:2:3`",
    default: "the first device with an active port, of those with atomics if there are any, and all that are like it: \
              every active port of the same vendor's devices and the same link, as many as all ranks have",
    check: readable::<Places>,
};

/// TRANSOM_VERBS_PORT.
pub const PORT: Variable = Variable {
    name: "TRANSOM_VERBS_PORT",
    set_by: SetBy::User,
    meaning: "the port of each RDMA device that TRANSOM_VERBS_DEVICE names without one",
    expected: "a number from 1 to 254",
    default: "the first that is active",
    check: readable::<Within<1, 254>>,
};

/// TRANSOM_VERBS_GID.
pub const GID: Variable = Variable {
    name: "TRANSOM_VERBS_GID",
    set_by: SetBy::User,
    meaning: "the address of each port that TRANSOM_VERBS_DEVICE names without one, by its index in the port's table",
    expected: "a number from 0 to 255",
    default: "RoCE: the first of RoCE v2 and IPv4, else of RoCE v2; InfiniBand: none, the LID is enough",
    check: readable::<Within<0, 255>>,
};

/// TRANSOM_VERBS_MTU.
pub const MTU: Variable = Variable {
    name: "TRANSOM_VERBS_MTU",
    set_by: SetBy::User,
    meaning: "the most bytes of a packet",
    expected: "256, 512, 1024, 2048 or 4096",
    default: "the most that both ports have active",
    check: readable::<Mtu>,
};

/// TRANSOM_VERBS_SL.
pub const SL: Variable = Variable {
    name: "TRANSOM_VERBS_SL",
    set_by: SetBy::User,
    meaning: "the service level",
    expected: "a number from 0 to 15",
    default: "0",
    check: readable::<Within<0, 15>>,
};

/// TRANSOM_VERBS_TRAFFIC_CLASS.
pub const TRAFFIC_CLASS: Variable = Variable {
    name: "TRANSOM_VERBS_TRAFFIC_CLASS",
    set_by: SetBy::User,
    meaning: "the traffic class of packets with a global address: on RoCE the DSCP, times 4",
    expected: "a number from 0 to 255",
    default: "0",
    check: readable::<Within<0, 255>>,
};

/// TRANSOM_VERBS_PKEY.
pub const PKEY: Variable = Variable {
    name: "TRANSOM_VERBS_PKEY",
    set_by: SetBy::User,
    meaning: "the partition of the port, by its key",
    expected: "a number from 1 to 65535, e.g. `0x8001`",
    default: "the first of the port",
    check: readable::<Partition>,
};

/// TRANSOM_VERBS_DEPTH.
pub const DEPTH: Variable = Variable {
    name: "TRANSOM_VERBS_DEPTH",
    set_by: SetBy::User,
    meaning: "how many operations may be under way between two ranks",
    expected: "a number from 4 to 32768",
    default: "128, less if the device has less",
    check: readable::<Within<4, 32768>>,
};

/// TRANSOM_VERBS_INLINE.
pub const INLINE: Variable = Variable {
    name: "TRANSOM_VERBS_INLINE",
    set_by: SetBy::User,
    meaning: "up to how many bytes a put travels in its request",
    expected: "a number from 0 to 4096",
    default: "128, less if the device has less",
    check: readable::<Within<0, 4096>>,
};

/// TRANSOM_VERBS_REGISTER.
pub const REGISTER: Variable = Variable {
    name: "TRANSOM_VERBS_REGISTER",
    set_by: SetBy::User,
    meaning: "from how many bytes on the memory of a put or get is registered for it, and not copied",
    expected: "a number from 32768 to 4294967295",
    default: "131072",
    check: readable::<Within<32_768, { u32::MAX }>>,
};

/// TRANSOM_VERBS_KEEP.
pub const KEEP: Variable = Variable {
    name: "TRANSOM_VERBS_KEEP",
    set_by: SetBy::User,
    meaning: "how many bytes of buffers of persistent and partitioned sends stay registered between messages",
    expected: "a number from 0 to 4294967295",
    default: "268435456",
    check: readable::<Within<0, { u32::MAX }>>,
};

/// TRANSOM_VERBS_TIMEOUT.
pub const TIMEOUT: Variable = Variable {
    name: "TRANSOM_VERBS_TIMEOUT",
    set_by: SetBy::User,
    meaning: "after how long a packet that is not answered is sent again",
    expected: "seconds above 0, e.g. `0.25`",
    default: "0.25",
    check: readable::<Timeout>,
};

/// TRANSOM_VERBS_RETRY.
pub const RETRY: Variable = Variable {
    name: "TRANSOM_VERBS_RETRY",
    set_by: SetBy::User,
    meaning: "how often a packet is sent again before the connection counts as broken, and is made anew",
    expected: "a number from 0 to 7; to Soft-RoCE 7 is for ever",
    default: "7",
    check: readable::<Within<0, 7>>,
};

/// TRANSOM_VERBS_NOTIFY.
pub const NOTIFY: Variable = Variable {
    name: "TRANSOM_VERBS_NOTIFY",
    set_by: SetBy::User,
    meaning: "how a word is put in one piece: by a write, which adapters do at once, or by compare-and-swap; at all ranks by \
              the latter if one has it so",
    expected: "`auto`, `write` or `atomic`",
    default: "auto: atomic on Soft-RoCE, which copies byte by byte; else write",
    check: readable::<Choice<NotifyBy>>,
};
