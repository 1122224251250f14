//! User settings, read from the [variables](crate::variables).

use crate::values::{Mtu, Partition, Places, RailName, Timeout, Within, WordWrite};
use crate::variables as set;
use ibverbs_sys::*;
use std::time::Duration;
use transom_channel::striping::Stripe;
use transom_channel::wire::RAILS;
use transom_channel::{Config, Paths};
use transom_launch::variables::VariableError;

/// Smallest size in bytes at which registration takes less time than copying; see docs/results/rdma.md.
const REGISTER_FROM: u32 = 128 << 10;

/// Default limit of idle registrations, in bytes. Registered memory cannot be swapped out, and persistent messages have
/// few buffers.
const REGCACHE_BYTES: u32 = 256 << 20;

/// The settings of a rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// Named rails, in order; empty if the ranks select them together.
    pub named: Vec<RailName>,
    /// Device, port and GID for rails that do not name them; see [`at`](Self::at).
    pub place: RailName,
    pub mtu: Option<ibv_mtu>,
    pub service_level: u8,
    /// Traffic class of packets with a GRH: DSCP and ECN of RoCE.
    pub traffic_class: Option<u8>,
    /// Partition key; `None` for the port's first.
    pub pkey: Option<u16>,
    /// Requests in flight per queue pair.
    pub depth: u32,
    /// Largest inline write, in bytes.
    pub inline: u32,
    /// Number of connections of a rank beyond which idle ones are given up; `None` for a share of the device's.
    pub connections: Option<u32>,
    /// Smallest transfer whose memory is registered for it, in bytes.
    pub register_from: u32,
    /// Most bytes of persistent send buffers that stay registered between messages.
    pub keep: u32,
    /// Time after which an unacknowledged packet is retransmitted.
    pub timeout: Duration,
    /// Number of retransmissions before the connection counts as broken.
    pub retries: u8,
    /// Order of writes that is relied on.
    pub word_write: WordWrite,
    /// Division of large puts and gets among rails, as for messages (TRANSOM_MESSAGES).
    pub division: Division,
    /// Paths of messages (TRANSOM_MESSAGES, whose other fields are read later).
    pub paths: Paths,
    /// Number of queue pairs that send messages as datagrams, and of buffers that receive them, if any.
    pub datagrams: Option<(usize, u32)>,
}

/// Division of large transfers among rails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub stripe: Stripe,
    /// Smallest average size of a stripe, in bytes.
    pub least: u64,
}

impl Default for Division {
    fn default() -> Self {
        let Config { stripe, stripe_from: least, .. } = Config::default();
        Division { stripe, least }
    }
}

/// Number of rails, the first ones, that carry messages as datagrams in a job of `rails` rails. With connections too, each
/// of them is one more rail of messages.
pub(super) fn datagram_rails(paths: Paths, rails: usize) -> usize {
    match paths {
        Paths::Connections => 0,
        Paths::Datagrams => rails,
        // At least one, so that an excess of connections is reported.
        Paths::Both => rails.min(RAILS.saturating_sub(rails).max(1)),
    }
}

impl Settings {
    /// Reads the variables, and takes the settings of messages from `messages`.
    pub fn from_env(messages: &Config) -> Result<Self, VariableError> {
        Ok(Settings {
            named: set::DEVICE.get::<Places>()?.map_or(Vec::new(), |places| places.0),
            place: RailName {
                device: None,
                port: set::PORT.get::<Within<1, 254>>()?.map(|port| port.0 as u8),
                gid: set::GID.get::<Within<0, 255>>()?.map(|gid| gid.0 as u8),
            },
            mtu: set::MTU.get::<Mtu>()?.map(|mtu| mtu.0),
            service_level: set::SL.get::<Within<0, 15>>()?.map_or(0, |level| level.0 as u8),
            traffic_class: set::TRAFFIC_CLASS.get::<Within<0, 255>>()?.map(|class| class.0 as u8),
            pkey: set::PKEY.get::<Partition>()?.map(|pkey| pkey.0),
            depth: set::DEPTH.get::<Within<4, 32768>>()?.map_or(128, |depth| depth.0),
            inline: set::INLINE.get::<Within<0, 4096>>()?.map_or(128, |inline| inline.0),
            connections: set::CONNECTIONS.get::<Within<1, { u32::MAX }>>()?.map(|most| most.0),
            register_from: set::ZCOPY_MIN.get::<Within<32_768, { u32::MAX }>>()?.map_or(REGISTER_FROM, |bytes| bytes.0),
            keep: set::REGCACHE_BYTES.get::<Within<0, { u32::MAX }>>()?.map_or(REGCACHE_BYTES, |bytes| bytes.0),
            timeout: set::TIMEOUT.get::<Timeout>()?.map_or(Duration::from_millis(250), |time| time.0),
            retries: set::RETRY.get::<Within<0, 7>>()?.map_or(7, |retries| retries.0 as u8),
            word_write: set::WORD_WRITE.get::<WordWrite>()?.unwrap_or_default(),
            division: Division { stripe: messages.stripe, least: messages.stripe_from },
            paths: messages.paths,
            datagrams: (messages.paths != Paths::Connections).then_some((messages.ud_lanes, messages.ud_buffers)),
        })
    }

    /// The settings of a named rail.
    pub fn at(&self, place: &RailName) -> Settings {
        let RailName { device, port, gid } = place.clone();
        let place = RailName { device, port: port.or(self.place.port), gid: gid.or(self.place.gid) };
        Settings { place, ..self.clone() }
    }

    /// The largest number of rails. With connections and datagrams, one rail of messages remains for datagrams.
    pub fn most_rails(&self) -> usize {
        match self.paths {
            Paths::Connections | Paths::Datagrams => RAILS,
            Paths::Both => RAILS - 1,
        }
    }

    /// The exponent of the adapter's timeout, which is 4.096 us times a power of two.
    pub fn timeout_exponent(&self) -> u8 {
        (1..=31).find(|&power| Duration::from_nanos(4096) * (1 << power) >= self.timeout).unwrap_or(31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::place;

    #[test]
    fn datagrams_use_the_rails_that_connections_leave() {
        let of = |paths| [1, 2, 3, 4].map(|rails| datagram_rails(paths, rails));
        assert_eq!(of(Paths::Connections), [0; 4]);
        assert_eq!(of(Paths::Datagrams), [1, 2, 3, 4]);
        assert_eq!(of(Paths::Both), [1, 2, 1, 1]);
    }

    /// Common settings apply to rails that do not name their own.
    #[test]
    fn named_port_and_gid_override_the_common_ones() {
        let all = Settings { place: RailName { device: None, port: Some(2), gid: Some(5) }, ..Settings::default() };
        let at = |text: &str| all.at(&place(text).unwrap()).place;
        assert_eq!(at("a"), RailName { device: Some("a".into()), port: Some(2), gid: Some(5) });
        assert_eq!(at("a:1"), RailName { device: Some("a".into()), port: Some(1), gid: Some(5) });
        assert_eq!(at("a:1:0"), RailName { device: Some("a".into()), port: Some(1), gid: Some(0) });
    }
}
