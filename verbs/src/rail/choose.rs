//! Ports that a rank could use. A pure function of the facts about this machine; [`pairing`](super::pairing) selects the
//! rails among them.

use super::place::Place;
use crate::VerbsError;
use crate::settings::Settings;
use ibverbs_sys::ibv_mtu;
use std::cmp::Reverse;

/// A device, as far as the selection needs it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub name: String,
    /// The function that the device lacks and what to do about that, if it lacks one. The rest of a job works without.
    pub lacks: Option<String>,
    /// Vendor number.
    pub vendor: u32,
    /// The place of the device, as seen by this rank.
    pub place: Place,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub number: u8,
    /// Port state, as libibverbs numbers it.
    pub state: u32,
    pub lid: u16,
    /// Active MTU.
    pub mtu: ibv_mtu,
    /// Bandwidth in Mb/s; 0 if unknown.
    pub rate: u32,
    pub ethernet: bool,
    /// The subnet requires a GRH.
    pub global: bool,
    pub gids: Vec<Gid>,
    /// Partition keys with their indices.
    pub pkeys: Vec<(u16, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gid {
    pub index: u8,
    pub raw: [u8; 16],
    /// RoCE v2.
    pub v2: bool,
}

/// Packet format of a rank. Ranks with different link types cannot reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Link {
    InfiniBand = 1,
    RoceV1 = 2,
    RoceV2 = 3,
}

impl Link {
    pub fn from_byte(byte: u8) -> Option<Link> {
        [Link::InfiniBand, Link::RoceV1, Link::RoceV2].into_iter().find(|link| *link as u8 == byte)
    }
}

/// A port with the addresses that a rank uses there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index into the candidates.
    pub device: usize,
    pub place: Place,
    /// Bandwidth in Mb/s; 0 if unknown.
    pub rate: u32,
    pub port: u8,
    pub lid: u16,
    pub mtu: ibv_mtu,
    pub pkey_index: u16,
    pub pkey: u16,
    pub gid: Gid,
    /// Packets carry a GRH.
    pub global: bool,
    pub link: Link,
}

const ACTIVE: u32 = 4;
/// Bit of a partition key that distinguishes full from limited members.
pub(crate) const FULL_MEMBER: u16 = 0x8000;

/// The usable ports, in order: active, with an address, and of one vendor for each link type, that of the fastest
/// port. Devices that lack a function are usable only by name.
pub(crate) fn choose(
    settings: &Settings,
    candidates: &[Result<Candidate, VerbsError>],
) -> Result<Vec<Choice>, VerbsError> {
    if candidates.is_empty() && settings.place.device.is_none() {
        return Err(VerbsError::NoDevice { source: None });
    }
    let (mut usable, mut why_not) = (Vec::new(), Vec::new());
    for (at, candidate) in candidates.iter().enumerate() {
        let ports = match candidate {
            Ok(device) => choose_ports(settings, device),
            Err(error) => Err(VerbsError::unusable(String::new(), error.to_string())),
        };
        match ports {
            Ok(ports) => usable.extend(ports.into_iter().map(|choice| Choice { device: at, ..choice })),
            // A device named by the user is never replaced.
            Err(error) if settings.place.device.is_some() => return Err(error),
            Err(VerbsError::Unusable { what, why }) if what.is_empty() => why_not.push(why),
            Err(error) => why_not.push(error.to_string()),
        }
    }
    if usable.is_empty() {
        return Err(VerbsError::unusable("no RDMA device is usable".into(), why_not.join("; ")));
    }
    for why in why_not {
        tracing::debug!(why, "an RDMA device is not used");
    }
    let vendor = |choice: &Choice| candidates[choice.device].as_ref().map_or(0, |device| device.vendor);
    let of_link = |link: Link| {
        let alike = usable.iter().enumerate().filter(|(_, choice)| choice.link == link);
        alike.max_by_key(|(at, choice)| (speed(choice.rate), Reverse(*at))).map(|(_, choice)| vendor(choice))
    };
    Ok(usable.iter().filter(|choice| of_link(choice.link) == Some(vendor(choice))).copied().collect())
}

/// A bandwidth by which ports are compared: one that is unknown is newer than this library.
pub(super) fn speed(rate: u32) -> u32 {
    if rate == 0 { u32::MAX } else { rate }
}

/// The usable ports of a device; an error if there is none.
fn choose_ports(settings: &Settings, device: &Candidate) -> Result<Vec<Choice>, VerbsError> {
    let name = &device.name;
    if let Some(lacks) = device.lacks.as_ref().filter(|_| settings.place.device.is_none()) {
        return Err(VerbsError::unusable(format!("RDMA device {name}"), lacks.clone()));
    }
    if let Some(port) = settings.place.port.filter(|&wanted| device.ports.iter().all(|port| port.number != wanted)) {
        let why = format!("{name} has {} port(s), numbered from 1", device.ports.len());
        return Err(VerbsError::unusable(format!("TRANSOM_VERBS_PORT={port}"), why));
    }
    let asked = device.ports.iter().filter(|port| settings.place.port.is_none_or(|wanted| port.number == wanted));
    let active = asked.clone().filter(|port| port.state == ACTIVE);
    let (mut ports, mut first_error) = (Vec::new(), None);
    for port in active {
        match choose_address(settings, device, port) {
            Ok(choice) => ports.push(choice),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    match (ports.is_empty(), first_error) {
        (false, _) => Ok(ports),
        (true, Some(error)) => Err(error),
        (true, None) => {
            let down = asked.map(|port| format!("port {} is {}", port.number, state_name(port.state)));
            let why = format!("{}; `ibv_devinfo` shows them", down.collect::<Vec<_>>().join(", "));
            Err(VerbsError::unusable(format!("RDMA device {name} has no active port"), why))
        }
    }
}

fn state_name(state: u32) -> &'static str {
    ["nop", "down", "initialising", "armed", "active", "active, deferred"].get(state as usize).unwrap_or(&"unknown")
}

fn choose_address(settings: &Settings, device: &Candidate, port: &Port) -> Result<Choice, VerbsError> {
    let at = format!("port {} of {}", port.number, device.name);
    if settings.mtu.is_some_and(|wanted| wanted > port.mtu) {
        let why = format!("{at} has an active MTU of {} bytes", 128 << port.mtu);
        return Err(VerbsError::unusable("TRANSOM_VERBS_MTU".into(), why));
    }
    let gid = choose_gid(settings, device, port)?;
    let same = |pkey: u16| settings.pkey.is_none_or(|wanted| (wanted ^ pkey) & !FULL_MEMBER == 0);
    // Limited members of a partition reach only its full members.
    let worth = |&&(index, pkey): &&(u16, u16)| (pkey & FULL_MEMBER != 0, std::cmp::Reverse(index));
    let pkey = port.pkeys.iter().filter(|(_, pkey)| same(*pkey)).max_by_key(worth);
    let (pkey_index, pkey) = match (pkey, settings.pkey) {
        (Some(&found), _) => found,
        (None, None) => (0, 0),
        (None, Some(wanted)) => {
            let there = port.pkeys.iter().map(|(_, pkey)| format!("{pkey:#06x}")).collect::<Vec<_>>().join(", ");
            let why = format!("{at} is not in that partition; its keys are {there}");
            return Err(VerbsError::unusable(format!("TRANSOM_VERBS_PKEY={wanted:#06x}"), why));
        }
    };
    Ok(Choice {
        device: 0,
        place: device.place,
        rate: port.rate,
        port: port.number,
        lid: port.lid,
        mtu: settings.mtu.unwrap_or(port.mtu),
        pkey_index,
        pkey,
        gid,
        global: port.ethernet || port.global || settings.place.gid.is_some(),
        link: match (port.ethernet, gid.v2) {
            (false, _) => Link::InfiniBand,
            (true, false) => Link::RoceV1,
            (true, true) => Link::RoceV2,
        },
    })
}

fn choose_gid(settings: &Settings, device: &Candidate, port: &Port) -> Result<Gid, VerbsError> {
    if let Some(index) = settings.place.gid {
        let there = port.gids.iter().map(|gid| gid.index.to_string()).collect::<Vec<_>>().join(", ");
        let why = format!("port {} of {} has no such GID index; it has {there}", port.number, device.name);
        let found = port.gids.iter().find(|gid| gid.index == index);
        return found.copied().ok_or_else(|| VerbsError::unusable(format!("TRANSOM_VERBS_GID={index}"), why));
    }
    if !port.ethernet {
        return Ok(port.gids.first().copied().unwrap_or(Gid { index: 0, raw: [0; 16], v2: false }));
    }
    // RoCE v2 is routable, and most networks use IPv4; RoCE v1 and link-local addresses come last.
    let worth = |gid: &&Gid| {
        let is_v4 = gid.raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        (gid.v2, is_v4, gid.raw[0] != 0xfe, std::cmp::Reverse(gid.index))
    };
    port.gids.iter().max_by_key(worth).copied().ok_or_else(|| {
        let why = "it has no GID; give its network interface an address (`ip address add`)".into();
        VerbsError::unusable(format!("port {} of RDMA device {}", port.number, device.name), why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::RailName;

    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn settings() -> Settings {
        Settings::default()
    }

    fn port(number: u8, state: u32) -> Port {
        let gid = |index, raw, v2| Gid { index, raw, v2 };
        let gids = vec![gid(0, LOCAL, true), gid(1, V4, false), gid(2, V4, true), gid(3, V4, true)];
        let pkeys = vec![(0, 0xffff)];
        Port { number, state, lid: 7, mtu: 3, rate: 100_000, ethernet: true, global: false, gids, pkeys }
    }

    fn device(name: &str, ports: Vec<Port>) -> Result<Candidate, VerbsError> {
        Ok(Candidate { name: name.into(), lacks: None, vendor: 0x02c9, place: Place::Near, ports })
    }

    #[test]
    fn ports_of_the_fastest_vendor_are_usable() {
        let infiniband = Port { ethernet: false, ..port(1, ACTIVE) };
        let soft = Candidate {
            name: "rxe0".into(),
            lacks: None,
            vendor: 0xff_ffff,
            place: Place::Unknown,
            ports: vec![Port { rate: 2_500, ..port(1, ACTIVE) }],
        };
        let devices = [
            Ok(soft),
            device("down0", vec![port(1, 1)]),
            device("mlx5_0", vec![port(1, ACTIVE), port(2, ACTIVE)]),
            device("ib0", vec![infiniband]),
            Err(VerbsError::unusable("mlx5_1".into(), "no permission".into())),
            device("mlx5_2", vec![port(1, 1), port(2, ACTIVE)]),
        ];
        let chosen = |settings: &Settings, devices: &[Result<Candidate, VerbsError>]| {
            let ports = choose(settings, devices).unwrap();
            ports.into_iter().map(|port| (port.device, port.port)).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&settings(), &devices), [(2, 1), (2, 2), (3, 1), (5, 2)]);
        assert_eq!(chosen(&settings(), &devices[..2]), [(0, 1)]);
        let of_port = |port| Settings { place: RailName { port, ..RailName::default() }, ..settings() };
        assert_eq!(chosen(&of_port(Some(2)), &devices), [(2, 2), (5, 2)]);
        let error = choose(&settings(), &devices[1..2]).unwrap_err().to_string();
        assert!(error.contains("port 1 is down"), "{error}");
        // A speed that this library does not know is newer than the others.
        let unknown = Port { rate: 0, ..port(1, ACTIVE) };
        let newer = Ok(Candidate { vendor: 1, ..device("new0", vec![unknown]).unwrap() });
        assert_eq!(chosen(&settings(), &[device("mlx5_0", vec![port(1, ACTIVE)]), newer]), [(1, 1)]);
    }

    #[test]
    fn device_without_a_function_is_usable_by_name() {
        let lacks = Some("it reports no atomics".into());
        let poor = Candidate { lacks, ..device("irdma0", vec![port(1, ACTIVE)]).unwrap() };
        let devices = [Ok(poor), device("mlx5_0", vec![port(1, 1), port(2, ACTIVE)])];
        let chosen = choose(&settings(), &devices).unwrap();
        let [Choice { device: 1, port: 2, gid: Gid { index: 2, .. }, link: Link::RoceV2, .. }] = chosen[..] else {
            panic!("{chosen:?}");
        };
        let error = choose(&settings(), &devices[..1]).unwrap_err().to_string();
        assert!(error.contains("RDMA device irdma0: it reports no atomics"), "{error}");
        let place = RailName { device: Some("irdma0".into()), ..RailName::default() };
        assert_eq!(choose(&Settings { place, ..settings() }, &devices[..1]).unwrap().len(), 1);
    }

    #[test]
    fn unusable_devices_are_named_with_reasons() {
        let refused = Err(VerbsError::unusable("mlx5_1".into(), "no permission".into()));
        let error = choose(&settings(), &[refused, device("mlx5_0", vec![port(1, 1)])]).unwrap_err().to_string();
        assert!(error.contains("mlx5_1: no permission; ") && error.contains("port 1 is down"), "{error}");
        assert!(matches!(choose(&settings(), &[]), Err(VerbsError::NoDevice { .. })));
        let mut bare = port(1, ACTIVE);
        bare.gids.clear();
        let error = choose(&settings(), &[device("mlx5_0", vec![bare])]).unwrap_err().to_string();
        assert!(error.contains("ip address add"), "{error}");
    }

    #[test]
    fn requested_values_are_used_or_refused() {
        let mut two = port(2, ACTIVE);
        two.pkeys = vec![(0, 0xffff), (5, 0x8012)];
        let devices = [device("mlx5_0", vec![port(1, ACTIVE), two])];
        let with = |change: fn(&mut Settings)| {
            let mut settings = settings();
            change(&mut settings);
            choose(&settings, &devices).map(|chosen| chosen[0])
        };
        assert_eq!(with(|asked| asked.place.gid = Some(3)).unwrap().gid.index, 3);
        assert_eq!(with(|asked| asked.mtu = Some(2)).unwrap().mtu, 2);
        assert_eq!(with(|asked| asked.pkey = Some(0x12)).unwrap().port, 2, "the port that is in the partition");
        let of_partition = with(|asked| (asked.place.port, asked.pkey) = (Some(2), Some(0x12))).unwrap();
        assert_eq!((of_partition.port, of_partition.pkey_index, of_partition.pkey), (2, 5, 0x8012));
        for (refused, wanted) in [
            (with(|asked| asked.place.gid = Some(9)), "no such GID index; it has 0, 1, 2, 3"),
            (with(|asked| asked.mtu = Some(5)), "active MTU of 1024 bytes"),
            (with(|asked| asked.place.port = Some(3)), "2 port(s)"),
            (
                with(|asked| (asked.place.port, asked.pkey) = (Some(1), Some(0x12))),
                "TRANSOM_VERBS_PKEY=0x0012: port 1 of mlx5_0 is not",
            ),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn full_membership_of_a_partition_is_preferred() {
        let chosen = |pkeys: &[(u16, u16)], wanted| {
            let port = Port { pkeys: pkeys.to_vec(), ..port(1, ACTIVE) };
            let settings = Settings { pkey: wanted, ..settings() };
            choose(&settings, &[device("mlx5_0", vec![port])]).map(|chosen| (chosen[0].pkey_index, chosen[0].pkey)).ok()
        };
        assert_eq!(chosen(&[(0, 0x7fff), (1, 0x8001), (2, 0x8002)], None), Some((1, 0x8001)));
        assert_eq!(chosen(&[(0, 0x7fff), (3, 0x0005)], None), Some((0, 0x7fff)), "only limited membership");
        assert_eq!(chosen(&[(0, 0x8001), (1, 0x0002), (2, 0x8002)], Some(2)), Some((2, 0x8002)));
        assert_eq!(chosen(&[(0, 0x8001)], Some(2)), None);
    }

    #[test]
    fn infiniband_uses_grh_if_the_subnet_requires_it() {
        let mut infiniband =
            Port { ethernet: false, gids: vec![Gid { index: 0, raw: LOCAL, v2: false }], ..port(1, ACTIVE) };
        let chosen = |port: &Port| choose(&settings(), &[device("mlx5_0", vec![port.clone()])]).unwrap()[0];
        assert_eq!((chosen(&infiniband).global, chosen(&infiniband).link), (false, Link::InfiniBand));
        infiniband.global = true;
        assert!(chosen(&infiniband).global);
    }
}
