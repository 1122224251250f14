//! Configuration of a rank's engine, set by a program or parsed from text.

mod fields;
mod named;

pub use fields::{Changes, FIELDS, Field};
pub use named::{NAMED, Named};

use crate::pipe;
use crate::polling::Order;
use crate::ring::{CompletionFlag, RingConfig};
use crate::rules::{Rules, RulesError};
use crate::striping::{Spread, Stripe};

/// Sizes and limits of a rank. `floor`, `marker`, `overdraft`, `paths` and `checksum` must be the same at all
/// ranks; the others may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Longest message that is sent eagerly, in bytes. Used, like `zero_copy_from`, only if no
    /// [`rules`](Self::rules) are given.
    pub eager: usize,
    /// Size of each ring.
    pub ring: RingConfig,
    /// Method by which a ring's receiver detects a complete message. `None`: the cheapest that the rail
    /// supports. The same at all ranks.
    pub marker: Option<CompletionFlag>,
    /// Most rings that a rank gives its peers; peers on its host and other peers are counted apart.
    pub rings: usize,
    /// Number of packets from a peer after which that peer gets a ring.
    pub ring_after: u32,
    /// Order in which rings are polled.
    pub order: Order,
    /// Most packets to one peer that may be unacknowledged.
    pub window: u32,
    /// Credit of each peer before its first message, in bytes of unreceived messages. Each message costs 64
    /// bytes beside its data. The same at all ranks.
    pub floor: u32,
    /// Credit of all peers together beyond their floors, in bytes.
    pub budget: u32,
    /// Bytes of RTS packets and short messages that a peer may leave unreceived beyond its credit. Each costs
    /// 64 bytes beside its data. A send beyond the overdraft fails. The same at all ranks.
    pub overdraft: u32,
    /// Delay before pending credits are sent in a packet of their own, in ns.
    pub credit_delay: u64,
    /// Shortest message that is moved without copies, in bytes, if its memory can be registered.
    pub zero_copy_from: u64,
    /// Distribution of packets that may use any rail.
    pub spread: Spread,
    /// Division of long messages among rails.
    pub stripe: Stripe,
    /// Smallest average length of a stripe, in bytes.
    pub stripe_from: u64,
    /// True if an RTS offers the sender's memory for the receiver to read.
    pub offer: bool,
    /// True if the receiver reads offered memory even if its sender is blocked and [may send it
    /// faster](crate::wire::Wire::may_send_faster). If not, the engine measures both ways.
    pub read_waiting: bool,
    /// Most events, and most packets of one ring, that one progress call handles.
    pub batch: usize,
    /// Default configuration of a pipe.
    pub pipe: pipe::Config,
    /// Path selection rules. `None`: the rules that `eager` and `zero_copy_from` imply.
    pub rules: Option<Rules>,
    /// Most connections of a rank that also has datagrams.
    pub connections: usize,
    /// Number of messages after which a rank asks a peer for a connection. A message counts if the rules would send it by
    /// one.
    pub connect_after: u32,
    /// True if connections made by windows and pipes count towards `connections`.
    pub count_windows: bool,
    /// Transport between ranks that share no memory. The same at all ranks.
    pub paths: Paths,
    /// Number of queues of each rail that send datagrams, used in turn.
    pub ud_lanes: usize,
    /// Number of buffers of each rail that receive datagrams, for all peers together. Datagrams that find none are lost.
    pub ud_buffers: u32,
    /// True if packets to other hosts carry a checksum. They then use no rings, and no message moves in place.
    pub checksum: bool,
}

/// Transport between ranks that share no memory. The wire implements it; an [`Engine`](crate::Engine) does
/// not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// A reliable connection for each pair.
    #[default]
    Connections,
    /// Datagrams, acknowledged by [`delivery`](crate::delivery): one queue for all peers.
    Datagrams,
    /// Datagrams to all peers, and connections to the peers with the most traffic.
    Both,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager: 8192,
            ring: RingConfig { slots: 32, bytes: 2048 },
            marker: None,
            rings: 8,
            ring_after: 16,
            order: Order::Circular,
            window: 64,
            floor: 256,
            budget: 4 << 20,
            overdraft: 1 << 30,
            credit_delay: 50_000,
            zero_copy_from: 32 << 10,
            spread: Spread::First,
            stripe: Stripe::Adaptive,
            stripe_from: 64 << 10,
            offer: true,
            read_waiting: false,
            batch: 64,
            pipe: pipe::Config::default(),
            rules: None,
            connections: 16,
            connect_after: 16,
            count_windows: false,
            paths: Paths::default(),
            ud_lanes: 4,
            ud_buffers: 1024,
            checksum: false,
        }
    }
}

/// Configuration error: an invalid value or text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misconfigured {
    /// A value is out of range.
    #[error("{field} is {value}, expected {must}")]
    Value {
        /// Name of the field.
        field: &'static str,
        /// Value found.
        value: String,
        /// Values allowed.
        must: &'static str,
    },
    /// The text names an unknown field.
    #[error("unknown field {0:?}; expected one of {all}", all = fields::names())]
    Unknown(String),
    /// A part of the text is neither `FIELD=VALUE` nor the name of a configuration.
    #[error("{0:?} is neither FIELD=VALUE nor one of {all}", all = named::names())]
    NoValue(String),
    /// No rail supports the marker: receivers could see torn messages.
    #[error(
        "marker={asked} is not supported by any rail: {needs}; set marker=rail to use a supported one, or rings=0 for no rings"
    )]
    CompletionFlag {
        /// Completion flag asked for.
        asked: String,
        /// Guarantee that the marker needs from a rail.
        needs: &'static str,
    },
    /// The text sets a field twice.
    #[error("{0} is set twice")]
    Twice(&'static str),
    /// The rules do not parse.
    #[error("rules: {0}")]
    Rules(#[from] RulesError),
    /// The file of rules cannot be read.
    #[error("rules: cannot read the file {path:?}: {why}")]
    File {
        /// Path of the file.
        path: String,
        /// Error from the operating system.
        why: String,
    },
}

impl Misconfigured {
    /// The error for a marker that no rail supports.
    pub(crate) fn marker(marker: CompletionFlag) -> Misconfigured {
        let needs = match marker {
            CompletionFlag::Last => "the last byte of a write must become visible last",
            CompletionFlag::Second => {
                "an aligned word must be written atomically, and no other rail may take over its write"
            }
            CompletionFlag::Immediate => "writes must carry immediate values",
        };
        let asked = Config { marker: Some(marker), ..Config::default() };
        let field = FIELDS.iter().find(|field| field.name == "marker").expect("the table has this field");
        Misconfigured::CompletionFlag { asked: field.value(&asked), needs }
    }
}

impl Config {
    /// Checks that all values are in range.
    pub fn check(&self) -> Result<(), Misconfigured> {
        let wrong = |field, value: u64, must| Err(Misconfigured::Value { field, value: value.to_string(), must });
        if let Some(field) = FIELDS.iter().find(|field| !(field.holds)(self)) {
            return Err(Misconfigured::Value { field: field.name, value: field.value(self), must: field.must });
        }
        match self {
            Config { floor, .. } if !(128..=1 << 16).contains(floor) => wrong("floor", (*floor).into(), "128 to 65536"),
            Config { batch: 0, .. } => wrong("batch", 0, "at least 1"),
            _ => Ok(()),
        }
    }
}
