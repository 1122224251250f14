//! Types that parse the values of variables. Their errors name the fault in a text.

use ibverbs_sys::ibv_mtu;
use std::str::FromStr;
use std::time::Duration;
use transom_channel::wire::RAILS;
use transom_launch::variables::Seconds;

/// The device, port and GID index of a rail, as far as they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RailName {
    pub device: Option<String>,
    pub port: Option<u8>,
    pub gid: Option<u8>,
}

/// The way to write 8 bytes as one unit that becomes visible after all earlier writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotifyBy {
    /// A write. Most adapters write aligned 8 bytes at once; none promises that they follow earlier writes.
    Write,
    /// Compare-and-swap, before which earlier writes are visible.
    Atomic,
}

/// The order of writes that is relied on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WordWrite {
    /// Only what the device promises.
    #[default]
    Auto,
    /// Writes of a queue pair become visible in order.
    Write,
    /// No order, not even within a write.
    Atomic,
}

/// A list of devices, each optionally with a port and a GID index.
pub(crate) struct Places(pub Vec<RailName>);

impl FromStr for Places {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<_> = text.split(',').map(str::trim).collect();
        if names.len() > RAILS {
            return Err(format!("{} devices, but a rank has at most {RAILS} rails", names.len()));
        }
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(format!("{name} is listed twice"));
        }
        names.into_iter().map(place).collect::<Result<_, _>>().map(Places)
    }
}

/// Parses `mlx5_0`, `mlx5_0:1`, or `mlx5_0:1:3`.
pub(crate) fn place(text: &str) -> Result<RailName, String> {
    let mut parts = text.split(':');
    let device = parts.next().filter(|name| !name.is_empty()).ok_or("a device has no name")?;
    let port = parts.next().map(|port| port.parse().ok().filter(|port| (1..=254).contains(port)));
    let gid = parts.next().map(|gid| gid.parse::<u8>().ok());
    match (port, gid, parts.next()) {
        (Some(None), ..) => Err(format!("{text}: the port is not a number from 1 to 254")),
        (_, Some(None), _) => Err(format!("{text}: the GID index is not a number from 0 to 255")),
        (.., Some(_)) => Err(format!("{text}: more than a name, a port and a GID index")),
        (port, gid, None) => Ok(RailName { device: Some(device.into()), port: port.flatten(), gid: gid.flatten() }),
    }
}

/// A number between two bounds.
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

/// A duration above zero, because adapters take zero for an infinite timeout.
pub(crate) struct Timeout(pub Duration);

impl FromStr for Timeout {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.parse::<Seconds>()?.0 {
            Duration::ZERO => Err("0 would disable retransmission"),
            time => Ok(Timeout(time)),
        }
    }
}

/// A partition key, in hexadecimal as in `ibv_devinfo -v`, or in decimal.
pub(crate) struct Partition(pub u16);

impl FromStr for Partition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u16::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.ok().filter(|pkey| pkey & 0x7fff != 0).map(Partition).ok_or("not a partition key")
    }
}

/// An MTU in bytes.
pub(crate) struct Mtu(pub ibv_mtu);

impl FromStr for Mtu {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim().parse::<u32>() {
            Ok(bytes @ (256 | 512 | 1024 | 2048 | 4096)) => Ok(Mtu(bytes.ilog2() - 7)),
            _ => Err("not an MTU"),
        }
    }
}

impl FromStr for WordWrite {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim() {
            "auto" => Ok(WordWrite::Auto),
            "write" => Ok(WordWrite::Write),
            "atomic" => Ok(WordWrite::Atomic),
            _ => Err("unknown value"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Result<Vec<RailName>, String> {
        text.parse::<Places>().map(|places| places.0)
    }

    #[test]
    fn rail_is_named_by_device_port_and_gid() {
        let place = |device: &str, port, gid| RailName { device: Some(device.into()), port, gid };
        let expected =
            vec![place("mlx5_0", None, None), place("mlx5_0", Some(2), None), place("rxe0", Some(1), Some(0))];
        assert_eq!(places("mlx5_0, mlx5_0:2,rxe0:1:0"), Ok(expected));
        for (wrong, why) in [
            ("", "a device has no name"),
            ("mlx5_0,,mlx5_1", "a device has no name"),
            ("mlx5_0:1,mlx5_0:1", "mlx5_0:1 is listed twice"),
            ("a,b,c,d,e", "5 devices, but a rank has at most 4 rails"),
            ("mlx5_0:0", "mlx5_0:0: the port is not a number from 1 to 254"),
            ("mlx5_0:255", "mlx5_0:255: the port is not a number from 1 to 254"),
            ("mlx5_0:", "mlx5_0:: the port is not a number from 1 to 254"),
            ("mlx5_0:1:256", "mlx5_0:1:256: the GID index is not a number from 0 to 255"),
            ("mlx5_0:1:2:3", "mlx5_0:1:2:3: more than a name, a port and a GID index"),
        ] {
            assert_eq!(places(wrong), Err(why.into()));
        }
    }
}
