//! What users may set, read from the [variables](crate::variables).

use crate::values::{Choice, Mtu, NotifyBy, Partition, Place, Places, Timeout, Within};
use crate::variables as set;
use ibverbs_sys::*;
use std::time::Duration;
use transom_channel::striping::Stripe;
use transom_channel::wire::RAILS;
use transom_channel::{Config, Paths};
use transom_launch::variables::VariableError;

/// From so many bytes on it takes less time to register memory than to copy: BENCHMARKS.md has the figures.
const REGISTER_FROM: u32 = 128 << 10;

/// Registered memory cannot be swapped out; buffers of persistent messages are mostly few.
const KEEP: u32 = 256 << 20;

/// What the variables say.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    /// The rails that are named, in order; none: every port that is like the first.
    pub named: Vec<Place>,
    /// What of a rail is said where it is not named: of one that is named, see [`at`](Self::at).
    pub place: Place,
    pub mtu: Option<ibv_mtu>,
    pub service_level: u8,
    /// Of packets with a global header: RoCE's DSCP and ECN.
    pub traffic_class: u8,
    /// The partition, by its key; the first of the port if none is asked for.
    pub pkey: Option<u16>,
    /// Operations under way on one queue pair.
    pub depth: u32,
    /// Bytes of a write that travel in the request itself.
    pub inline: u32,
    /// From how many bytes on the memory of an operation is registered for it.
    pub register_from: u32,
    /// Up to how many bytes of memory that messages are sent from again and again stay registered.
    pub keep: u32,
    /// After how long what is not answered is sent again.
    pub timeout: Duration,
    /// How often it is, before the connection counts as broken.
    pub retries: u8,
    pub notify_by: Option<NotifyBy>,
    /// How large puts and gets are divided among rails, as messages are: of TRANSOM_MESSAGES, too.
    pub division: Division,
    /// By what messages go: of TRANSOM_MESSAGES, whose other fields are looked at later.
    pub paths: Paths,
    /// By how many queue pairs messages are sent as datagrams, if they are.
    pub datagrams: Option<usize>,
}

/// How what is large is divided among rails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pub stripe: Stripe,
    /// Bytes of a stripe at least, on average.
    pub least: u64,
}

impl Default for Division {
    fn default() -> Self {
        let Config { stripe, stripe_from: least, .. } = Config::default();
        Division { stripe, least }
    }
}

impl Settings {
    /// As the variables say, and for messages as `messages` says.
    pub fn from_env(messages: &Config) -> Result<Self, VariableError> {
        Ok(Settings {
            named: set::DEVICE.get::<Places>()?.map_or(Vec::new(), |places| places.0),
            place: Place {
                device: None,
                port: set::PORT.get::<Within<1, 254>>()?.map(|port| port.0 as u8),
                gid: set::GID.get::<Within<0, 255>>()?.map(|gid| gid.0 as u8),
            },
            mtu: set::MTU.get::<Mtu>()?.map(|mtu| mtu.0),
            service_level: set::SL.get::<Within<0, 15>>()?.map_or(0, |level| level.0 as u8),
            traffic_class: set::TRAFFIC_CLASS.get::<Within<0, 255>>()?.map_or(0, |class| class.0 as u8),
            pkey: set::PKEY.get::<Partition>()?.map(|pkey| pkey.0),
            depth: set::DEPTH.get::<Within<4, 32768>>()?.map_or(128, |depth| depth.0),
            inline: set::INLINE.get::<Within<0, 4096>>()?.map_or(128, |inline| inline.0),
            register_from: set::REGISTER.get::<Within<32_768, { u32::MAX }>>()?.map_or(REGISTER_FROM, |bytes| bytes.0),
            keep: set::KEEP.get::<Within<0, { u32::MAX }>>()?.map_or(KEEP, |bytes| bytes.0),
            timeout: set::TIMEOUT.get::<Timeout>()?.map_or(Duration::from_millis(250), |time| time.0),
            retries: set::RETRY.get::<Within<0, 7>>()?.map_or(7, |retries| retries.0 as u8),
            notify_by: set::NOTIFY.get::<Choice<NotifyBy>>()?.and_then(|choice| choice.0),
            division: Division { stripe: messages.stripe, least: messages.stripe_from },
            paths: messages.paths,
            datagrams: (messages.paths != Paths::Connections).then_some(messages.ud_lanes),
        })
    }

    /// Of a rail that is named so.
    pub fn at(&self, place: &Place) -> Settings {
        let Place { device, port, gid } = place.clone();
        let place = Place { device, port: port.or(self.place.port), gid: gid.or(self.place.gid) };
        Settings { place, ..self.clone() }
    }

    /// Rails at most. Datagrams, if messages go by them, go by the first, which is the only one then unless there are connections,
    /// too; and where there are both they count as one.
    pub fn most_rails(&self) -> usize {
        match self.paths {
            Paths::Connections => RAILS,
            Paths::Datagrams => 1,
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

    /// What is said of all rails holds for those of which nothing else is.
    #[test]
    fn what_a_rail_says_goes_before_what_is_said_of_all() {
        let all = Settings { place: Place { device: None, port: Some(2), gid: Some(5) }, ..Settings::default() };
        let at = |text: &str| all.at(&place(text).unwrap()).place;
        assert_eq!(at("a"), Place { device: Some("a".into()), port: Some(2), gid: Some(5) });
        assert_eq!(at("a:1"), Place { device: Some("a".into()), port: Some(1), gid: Some(5) });
        assert_eq!(at("a:1:0"), Place { device: Some("a".into()), port: Some(1), gid: Some(0) });
    }
}
