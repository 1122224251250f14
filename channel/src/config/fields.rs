//! Fields of a [`Config`] that a text such as `eager=0,order=recent` sets, in one table.

use super::{Config, Misconfigured, NAMED, Paths};
use crate::packet::LONGEST;
use crate::pipe::Step;
use crate::polling::Order;
use crate::ring::CompletionFlag;
use crate::rules::Rules;
use crate::sequence::FARTHEST;
use crate::striping::{Spread, Stripe};
use crate::wire::RAILS;
use std::str::FromStr;

/// A field of a [`Config`] that a text can set.
#[derive(Debug)]
pub struct Field {
    /// Name in the text.
    pub name: &'static str,
    /// Meaning, with its unit.
    pub meaning: &'static str,
    /// Accepted values.
    pub must: &'static str,
    get: fn(&Config) -> String,
    set: fn(&mut Config, &str) -> Option<()>,
    pub(super) holds: fn(&Config) -> bool,
}

/// A row whose value is parsed and printed as text, e.g. a number.
macro_rules! row {
    ($name:literal, $($place:ident).+, $meaning:literal, $must:literal, $holds:expr) => {
        Field {
            name: $name,
            meaning: $meaning,
            must: $must,
            get: |config| config.$($place).+.to_string(),
            set: |config, text| Some(config.$($place).+ = text.parse().ok()?),
            holds: $holds,
        }
    };
}

/// A row whose value has a name in a table.
macro_rules! choice {
    ($name:literal, $($place:ident).+, $names:ident, $meaning:literal, $must:literal) => {
        Field {
            name: $name,
            meaning: $meaning,
            must: $must,
            get: |config| {
                let named = $names.iter().find(|(_, value)| *value == config.$($place).+);
                named.expect("the table names all values").0.to_owned()
            },
            set: |config, text| Some(config.$($place).+ = $names.iter().find(|(name, _)| *name == text)?.1),
            holds: |_| true,
        }
    };
}

const ORDERS: [(&str, Order); 3] =
    [("sequential", Order::Sequential), ("circular", Order::Circular), ("recent", Order::RecentFirst)];
const MARKERS: [(&str, Option<CompletionFlag>); 4] = [
    ("rail", None),
    ("last", Some(CompletionFlag::Last)),
    ("second", Some(CompletionFlag::Second)),
    ("immediate", Some(CompletionFlag::Immediate)),
];
const YES_OR_NO: [(&str, bool); 2] = [("yes", true), ("no", false)];
const SPREADS: [(&str, Spread); 4] = [
    ("first", Spread::First),
    ("binding", Spread::Binding),
    ("round_robin", Spread::RoundRobin),
    ("weighted", Spread::Weighted),
];
const STRIPES: [(&str, Stripe); 5] = [
    ("even", Stripe::Even),
    ("weighted", Stripe::Weighted),
    ("binding", Stripe::Binding),
    ("adaptive", Stripe::Adaptive),
    ("pull", Stripe::Pull),
];
const PATHS: [(&str, Paths); 3] = [("rc", Paths::Connections), ("ud", Paths::Datagrams), ("both", Paths::Both)];
const STEPS: [(&str, Step); 5] = [
    ("basic", Step::Basic),
    ("piggyback", Step::Piggyback),
    ("pipeline", Step::Pipeline),
    ("read", Step::Read),
    ("write", Step::Write),
];

/// All fields that a text can set. The other fields of a [`Config`] are fixed.
pub const FIELDS: &[Field] = &[
    row!(
        "eager",
        eager,
        "longest message that is sent eagerly, in bytes, in several packets if needed; longer messages use rendezvous",
        "a number up to 1073741824",
        |config| config.eager <= 1 << 30
    ),
    row!("ring_slots", ring.slots, "number of slots of a ring", "2 to 1024", |config| (2..=1024)
        .contains(&config.ring.slots)),
    row!("ring_bytes", ring.bytes, "size of a slot, in bytes", "136 to 65536, and divisible by 8", |config| {
        config.ring.is_sound() && config.ring.longest() >= LONGEST
    }),
    choice!(
        "marker",
        marker,
        MARKERS,
        "completion flag of a message in a ring, the same at all ranks: the last bytes of the write, a second write, an immediate \
         value, or the cheapest of these that the rail keeps",
        "rail, last, second or immediate"
    ),
    row!(
        "rings",
        rings,
        "largest number of rings for peers; in a job on several hosts as many again for peers of this host",
        "a number from 0 on",
        |_| true
    ),
    row!("ring_after", ring_after, "number of packets after which a peer gets a ring", "a number from 0 on", |_| true),
    choice!("order", order, ORDERS, "order in which rings are polled", "sequential, circular or recent"),
    row!("window", window, "largest number of unacknowledged packets to one peer", "2 to 1024", |config| {
        (2..=FARTHEST).contains(&config.window)
    }),
    row!(
        "zero_copy_from",
        zero_copy_from,
        "smallest rendezvous message that is read or written in place, in bytes; smaller ones are copied in packets",
        "a number from 1 on",
        |config| config.zero_copy_from > 0
    ),
    Field {
        name: "spread",
        meaning: "rail of each packet: the first, one rail for each rank, all in turn, by declared bandwidth, or a \
                  number of consecutive packets on each; rings use the first",
        must: "first, binding, round_robin, weighted or window:PACKETS, of 1 to 64 packets",
        get: |config| match config.spread {
            Spread::Window(packets) => format!("window:{packets}"),
            other => {
                SPREADS.iter().find(|(_, spread)| *spread == other).expect("the table names all values").0.to_owned()
            }
        },
        set: |config, text| {
            let named = SPREADS.iter().find(|(name, _)| *name == text).map(|(_, spread)| *spread);
            let window = || text.strip_prefix("window:")?.parse().ok().map(Spread::Window);
            config.spread = named.or_else(window)?;
            Some(())
        },
        holds: |config| !matches!(config.spread, Spread::Window(0 | 65..)),
    },
    Field {
        name: "stripe",
        meaning: "division of rendezvous messages in place among rails: evenly, by declared bandwidth, by these weights, none but one \
                  rail for each rank, by the times of earlier messages, or by these times in pieces that an idle rail takes from a \
                  busy one",
        must: "even, weighted, weights:A:B.., of 1 to 64 for each of up to 4 rails, binding, adaptive or pull",
        get: |config| match config.stripe {
            Stripe::Given(weights) => {
                let given = weights.iter().take_while(|weight| **weight > 0).map(|weight| format!(":{weight}"));
                format!("weights{}", given.collect::<String>())
            }
            other => {
                STRIPES.iter().find(|(_, stripe)| *stripe == other).expect("the table names all values").0.to_owned()
            }
        },
        set: |config, text| {
            let named = STRIPES.iter().find(|(name, _)| *name == text).map(|(_, stripe)| *stripe);
            config.stripe = named.or_else(|| weights(text))?;
            Some(())
        },
        holds: |config| match config.stripe {
            Stripe::Given(weights) => {
                let given = weights.iter().take_while(|weight| (1..=64).contains(*weight)).count();
                given > 0 && weights[given..].iter().all(|weight| *weight == 0)
            }
            _ => true,
        },
    },
    row!("stripe_from", stripe_from, "smallest average part of a divided message, in bytes", "a number", |_| true),
    choice!(
        "offer",
        offer,
        YES_OR_NO,
        "yes: the sender of a rendezvous message offers its memory for reading",
        "yes or no"
    ),
    choice!(
        "read_waiting",
        read_waiting,
        YES_OR_NO,
        "yes: unmapped memory on this host is always read, even if a waiting sender was faster before",
        "yes or no"
    ),
    row!(
        "credit_delay",
        credit_delay,
        "delay before pending credits are sent in a packet of their own, in ns",
        "a number",
        |_| true
    ),
    row!(
        "budget",
        budget,
        "credit of all peers together for unreceived messages, in bytes, beyond the initial credit of each peer",
        "a number up to 1073741824",
        |config| config.budget <= 1 << 30
    ),
    row!(
        "overdraft",
        overdraft,
        "limit of unreceived envelopes and short messages of a peer beyond its credit, in bytes (64 each, and their data), the same at \
         all ranks; a send beyond that fails",
        "64 to 1073741824",
        |config| (64..=1 << 30).contains(&config.overdraft)
    ),
    choice!(
        "pipe",
        pipe.step,
        STEPS,
        "protocol of pipes opened without a configuration; like the next three fields the same at both ends",
        "basic, piggyback, pipeline, read or write"
    ),
    row!(
        "pipe_chunk",
        pipe.chunk,
        "size of a chunk of a pipe, in bytes",
        "64 to 65536, and divisible by 8",
        |config| { crate::pipe::Config { chunks: 2, ..config.pipe }.is_sound() }
    ),
    row!("pipe_chunks", pipe.chunks, "number of chunks of a pipe", "2 to 1024, in all 1 MiB at most", |config| {
        config.pipe.is_sound()
    }),
    row!(
        "pipe_zero_copy_from",
        pipe.zero_copy_from,
        "smallest buffer owned by a pipe that is sent without a copy, in bytes",
        "a number",
        |_| true
    ),
    choice!(
        "paths",
        paths,
        PATHS,
        "transport of packets between hosts, the same at all ranks: reliable connections (rc), datagrams (ud), or datagrams to all peers \
         and connections to some",
        "rc, ud or both"
    ),
    row!(
        "connections",
        connections,
        "largest number of connections of a rank that also has datagrams",
        "a number from 0 on",
        |_| true
    ),
    row!(
        "connect_after",
        connect_after,
        "number of messages to a peer after which a rank that also has datagrams requests a connection; only messages count that the rules would send by it",
        "a number from 0 on",
        |_| true
    ),
    choice!(
        "count_windows",
        count_windows,
        YES_OR_NO,
        "yes: connections made by windows and pipes count towards `connections`",
        "yes or no"
    ),
    row!("ud_lanes", ud_lanes, "number of queue pairs of each rail that send datagrams in turn", "1 to 16", |config| {
        (1..=16).contains(&config.ud_lanes)
    }),
    row!(
        "ud_buffers",
        ud_buffers,
        "number of buffers of each rail that receive datagrams, of one MTU each; as many as the adapter has, if those are fewer",
        "64 to 16384",
        |config| (64..=16_384).contains(&config.ud_buffers)
    ),
    choice!(
        "checksum",
        checksum,
        YES_OR_NO,
        "yes: packets between hosts carry a checksum that the receiver verifies, and damaged ones are resent; then without rings, and \
         no message is read or written in place",
        "yes or no"
    ),
    Field {
        name: RULES,
        meaning: "path of each message, in place of `eager` and `zero_copy_from`; must be the last field of a text",
        must: "a table of rules, or @ and the name of a file that has one",
        get: |config| {
            let rules = config.rules.clone();
            rules.unwrap_or_else(|| Rules::usual(config.eager, config.zero_copy_from)).to_string()
        },
        set: |config, text| {
            config.rules = Some(text.parse().ok()?);
            Some(())
        },
        holds: |_| true,
    },
];

/// Weights of a text such as `weights:4:1`.
fn weights(text: &str) -> Option<Stripe> {
    let mut weights = [0; RAILS];
    for (rail, weight) in text.strip_prefix("weights:")?.split(':').enumerate() {
        *weights.get_mut(rail)? = weight.parse().ok()?;
    }
    Some(Stripe::Given(weights))
}

/// The field whose value may contain commas.
const RULES: &str = "rules";

impl Field {
    /// Value in a configuration, as text.
    pub fn value(&self, config: &Config) -> String {
        (self.get)(config)
    }
}

pub(super) fn names() -> String {
    FIELDS.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")
}

/// Changes to a [`Config`], parsed from a text such as `eager=0,order=recent`, `aptus,connections=32` or `rules=TRUE,
/// Copy-Based`.
///
/// ```
/// use transom_channel::{Changes, Config};
/// let changes: Changes = "eager=0,ring_slots=4".parse()?;
/// let config = changes.of(Config::default());
/// assert_eq!((config.eager, config.ring.slots, config.window), (0, 4, 64));
/// let changes: Changes = "aptus,window=128".parse()?;
/// let config = changes.of(Config::default());
/// assert_eq!((config.connections, config.rings, config.window), (16, 8, 128));
/// let error = "eager=much".parse::<Changes>().unwrap_err();
/// assert_eq!(error.to_string(), "eager is much, expected a number up to 1073741824");
/// # Ok::<(), transom_channel::Misconfigured>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes(Vec<(usize, String)>);

impl FromStr for Changes {
    type Err = Misconfigured;

    fn from_str(text: &str) -> Result<Changes, Misconfigured> {
        let (mut changes, mut named) = (Changes::default(), Changes::default());
        for part in parts(text) {
            let Some((name, value)) = part.split_once('=') else {
                let by_name = NAMED.iter().find(|named| named.name == part);
                let by_name = by_name.ok_or_else(|| Misconfigured::NoValue(part.to_owned()))?;
                // A named configuration applies before the fields that change it, wherever its name stands.
                named.0.extend(by_name.text.parse::<Changes>()?.0);
                continue;
            };
            let at = FIELDS.iter().position(|field| field.name == name);
            let at = at.ok_or_else(|| Misconfigured::Unknown(name.to_owned()))?;
            if changes.0.iter().any(|(other, _)| *other == at) {
                return Err(Misconfigured::Twice(FIELDS[at].name));
            }
            let value = if name == RULES { rules(value)? } else { value.to_owned() };
            changes.0.push((at, value));
        }
        named.0.append(&mut changes.0);
        let changes = named;
        let config = changes.apply(Config::default())?;
        config.check()?;
        Ok(changes)
    }
}

/// Parts between commas. Rules contain commas, so they are the last part.
fn parts(mut text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let rules = text.trim_start().strip_prefix(RULES).is_some_and(|rest| rest.starts_with('='));
        let (part, rest) = if rules { (text, "") } else { text.split_once(',').unwrap_or((text, "")) };
        parts.push(part.trim());
        text = rest;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Text of a table of rules, read from a file if the value names one. Errors carry line and column.
fn rules(value: &str) -> Result<String, Misconfigured> {
    let text = match value.trim().strip_prefix('@') {
        None => value.to_owned(),
        Some(path) => std::fs::read_to_string(path)
            .map_err(|why| Misconfigured::File { path: path.to_owned(), why: why.to_string() })?,
    };
    text.parse::<Rules>()?;
    Ok(text)
}

impl Changes {
    /// Returns `config` with these changes.
    pub fn of(&self, config: Config) -> Config {
        self.apply(config).expect("values were checked when they were parsed")
    }

    fn apply(&self, mut config: Config) -> Result<Config, Misconfigured> {
        for (at, value) in &self.0 {
            let field = &FIELDS[*at];
            (field.set)(&mut config, value).ok_or_else(|| Misconfigured::Value {
                field: field.name,
                value: value.clone(),
                must: field.must,
            })?;
        }
        Ok(config)
    }
}
