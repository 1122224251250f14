//! What values of the variables are parsed to. Each type says in its error what is wrong with a text.

use ibverbs_sys::ibv_mtu;
use std::str::FromStr;
use std::time::Duration;
use transom_channel::wire::RAILS;
use transom_launch::variables::Seconds;

/// Which port a rail is of, and which of its addresses it has, as far as that is said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub device: Option<String>,
    pub port: Option<u8>,
    pub gid: Option<u8>,
}

/// How 8 bytes are put in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyBy {
    /// By a write: adapters write aligned 8 bytes at once.
    Write,
    /// By compare-and-swap, where the device is software that copies byte by byte.
    Atomic,
}

/// Names of devices, each with a port or not, and with an address of that or not.
pub(crate) struct Places(pub Vec<Place>);

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = text.split(',').map(str::trim).collect();
        if names.len() > RAILS {
            return Err(format!("{} devices, where a rank has {RAILS} rails at most", names.len()));
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(format!("{name} is there twice"));
        }
        names.into_iter().map(place).collect::<Result<_, _>>().map(Places)
    }
}

/// `mlx5_0`, `mlx5_0:1`, or `mlx5_0:1:3`.
pub(crate) fn place(text: &str) -> Result<Place, String> {
    let mut parts = text.split(':');
    let device = parts.next().filter(|name| !name.is_empty()).ok_or("a device without a name")?;
    let port = parts.next().map(|port| port.parse().ok().filter(|port| (1..=254).contains(port)));
    let gid = parts.next().map(|gid| gid.parse::<u8>().ok());
    match (port, gid, parts.next()) {
        (Some(None), ..) => Err(format!("{text}: no port from 1 to 254 behind the name")),
        (_, Some(None), _) => Err(format!("{text}: no index of an address, from 0 to 255, behind the port")),
        (.., Some(_)) => Err(format!("{text}: more than a name, a port and the index of an address")),
        (port, gid, None) => Ok(Place { device: Some(device.into()), port: port.flatten(), gid: gid.flatten() }),
    }
}

/// A number within bounds.
pub(crate) struct Within<const LOW: u32, const HIGH: u32>(pub u32);

impl<const LOW: u32, const HIGH: u32> FromStr for Within<LOW, HIGH> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().parse() {
            Ok(number) if (LOW..=HIGH).contains(&number) => Ok(Within(number)),
            _ => Err(format!("not a number from {LOW} to {HIGH}")),
        }
    }
}

/// A time, not zero: an adapter takes that for ever.
pub(crate) struct Timeout(pub Duration);

impl FromStr for Timeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.parse::<Seconds>()?.0 {
            Duration::ZERO => Err("0 would never send again"),
            time => Ok(Timeout(time)),
        }
    }
}

/// A partition key, in hexadecimal as `ibv_devinfo -v` has it, or in decimal.
pub(crate) struct Partition(pub u16);

impl FromStr for Partition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.ok().filter(|pkey| pkey & 0x7fff != 0).map(Partition).ok_or("no partition key")
    }
}

/// Bytes of a packet.
pub(crate) struct Mtu(pub ibv_mtu);

impl FromStr for Mtu {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim().parse::<u32>() {
            Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(Mtu(bytes.ilog2() - 7)),
            _ => Err("no such MTU"),
        }
    }
}

/// One of several words, or `auto`.
pub(crate) struct Choice<T>(pub Option<T>);

impl FromStr for Choice<NotifyBy> {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        choose(text, &[("write", NotifyBy::Write), ("atomic", NotifyBy::Atomic)])
    }
}

fn choose<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<Choice<T>, &'static str> {
    match words.iter().find(|(word, _)| *word == text.trim()) {
        Some(&(_, value)) => Ok(Choice(Some(value))),
        None if text.trim() == "auto" => Ok(Choice(None)),
        None => Err("no such choice"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Result<Vec<Place>, String> {
        text.parse::<Places>().map(|places| places.0)
    }

    #[test]
    fn a_rail_is_named_by_device_port_and_address() {
        let place = |device: &str, port, gid| Place { device: Some(device.into()), port, gid };
        let expected =
            vec![place("mlx5_0", None, None), place("mlx5_0", Some(2), None), place("rxe0", Some(1), Some(0))];
        assert_eq!(places("mlx5_0, mlx5_0:2,rxe0:1:0"), Ok(expected));
        for (wrong, why) in [
            ("", "a device without a name"),
            ("mlx5_0,,mlx5_1", "a device without a name"),
            ("mlx5_0:1,mlx5_0:1", "mlx5_0:1 is there twice"),
            ("a,b,c,d,e", "5 devices, where a rank has 4 rails at most"),
            ("mlx5_0:0", "mlx5_0:0: no port from 1 to 254 behind the name"),
            ("mlx5_0:255", "mlx5_0:255: no port from 1 to 254 behind the name"),
            ("mlx5_0:", "mlx5_0:: no port from 1 to 254 behind the name"),
            ("mlx5_0:1:256", "mlx5_0:1:256: no index of an address, from 0 to 255, behind the port"),
            ("mlx5_0:1:2:3", "mlx5_0:1:2:3: more than a name, a port and the index of an address"),
        ] {
            assert_eq!(places(wrong), Err(why.into()));
        }
    }
}
