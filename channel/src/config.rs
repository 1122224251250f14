//! What can be chosen, by a program or by a text.

mod fields;
mod named;

pub use fields::{Changes, FIELDS, Field};
pub use named::{NAMED, Named};

use crate::pipe;
use crate::polling::Order;
use crate::ring::{Marker, Shape};
use crate::rules::{Rules, RulesError};
use crate::striping::{Spread, Stripe};

/// Sizes and limits of a rank. Ranks may differ in all but `floor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The longest message that is sent unasked, in bytes; as `zero_copy_from`, for where no [`rules`](Self::rules) are given.
    pub eager: usize,
    /// The rings.
    pub ring: Shape,
    /// How it is told that a message in a ring is whole; the cheapest that the rail keeps, if none is given. The same at all ranks.
    pub marker: Option<Marker>,
    /// Rings that a rank has for its peers at most, near ones and others apart.
    pub rings: usize,
    /// The packets after which a peer gets one.
    pub ring_after: u32,
    /// How rings are polled.
    pub order: Order,
    /// Packets to one peer that are not acknowledged at most.
    pub window: u32,
    /// Credit of each peer before its first message, in bytes: unreceived messages, 64 each beside their data. The same at all ranks.
    pub floor: u32,
    /// Credit of all peers together beyond their floors, in bytes.
    pub budget: u32,
    /// Bytes of announcements and short messages that a peer may leave unreceived beyond its credit, 64 each beside their data. A send
    /// beyond that fails. The same at all ranks.
    pub overdraft: u32,
    /// Nanoseconds after which a credit is told by a packet of its own, if none goes that way.
    pub credit_delay: u64,
    /// Bytes from which on a message is not copied in packets, if memory can be registered.
    pub zero_copy_from: u64,
    /// By which rails packets go that may go by any.
    pub spread: Spread,
    /// How what is long is divided among rails.
    pub stripe: Stripe,
    /// Bytes of a stripe at least, on average.
    pub stripe_from: u64,
    /// Whether a message that waits offers its memory to be read.
    pub offer: bool,
    /// Whether such memory is read though its owner waits and [may send it faster](crate::wire::Wire::may_send_faster); else that is
    /// tried.
    pub read_waiting: bool,
    /// Events, and packets of a ring, that one turn of progress takes at most.
    pub batch: usize,
    /// Pipes of which nothing else is said.
    pub pipe: pipe::Config,
    /// Which path a message takes; those that `eager` and `zero_copy_from` make, if none are given.
    pub rules: Option<Rules>,
    /// Connections that a rank has at most, where it has datagrams too.
    pub connections: usize,
    /// The messages after which it asks a peer for one.
    pub connect_after: u32,
    /// Whether those that windows and pipes have made count as well.
    pub count_windows: bool,
    /// By what packets go between hosts that have no ring. The same at all ranks.
    pub paths: Paths,
    /// Queues that datagrams are sent by in turn.
    pub ud_lanes: usize,
    /// Whether datagrams bring a checksum.
    pub checksum: bool,
}

/// By what packets go where there is no memory to share. An [`Engine`](crate::Engine) does not care: it is a matter of its wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Paths {
    /// A reliable connection for each pair.
    #[default]
    Connections,
    /// Datagrams, acknowledged here ([`delivery`](crate::delivery)): one queue for all peers.
    Datagrams,
    /// Datagrams to all, and connections for the peers that are spoken with most.
    Both,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            eager: 8192,
            ring: Shape { slots: 32, bytes: 2048 },
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
            checksum: false,
        }
    }
}

/// Which choice cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misconfigured {
    /// A value.
    #[error("{field} is {value}, and must be {must}")]
    Value {
        /// Of which field.
        field: &'static str,
        /// Which.
        value: String,
        /// What it must be.
        must: &'static str,
    },
    /// A text names a field that is none.
    #[error("there is no field {0:?}; there are {all}", all = fields::names())]
    Unknown(String),
    /// A part of a text is no field and value, and no name.
    #[error("{0:?} is neither FIELD=VALUE nor one of {all}", all = named::names())]
    NoValue(String),
    /// A marker that no rail keeps, so that messages could be seen torn.
    #[error(
        "marker is {asked}, which no rail here keeps: {needs}; marker=rail takes what there is, or rings=0 does without"
    )]
    Marker {
        /// Which.
        asked: String,
        /// What a rail must promise for it.
        needs: &'static str,
    },
    /// A text names a field twice.
    #[error("{0} is there twice")]
    Twice(&'static str),
    /// Rules that are none.
    #[error("rules: {0}")]
    Rules(#[from] RulesError),
    /// A file of rules that cannot be read.
    #[error("rules: the file {path:?} cannot be read: {why}")]
    File {
        /// Which.
        path: String,
        /// What the system says.
        why: String,
    },
}

impl Misconfigured {
    /// No rail keeps this one.
    pub(crate) fn marker(marker: Marker) -> Misconfigured {
        let needs = match marker {
            Marker::Last => "the last byte of a write must be seen last",
            Marker::Second => {
                "an aligned word must be seen whole, and there must be no other rail that it may have to go by"
            }
            Marker::Immediate => "writes must bring immediate values",
        };
        let asked = Config { marker: Some(marker), ..Config::default() };
        let field = FIELDS.iter().find(|field| field.name == "marker").expect("it is a field");
        Misconfigured::Marker { asked: field.value(&asked), needs }
    }
}

impl Config {
    /// Whether all can be.
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
