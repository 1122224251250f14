//! Selection of the devices, ports and addresses that a rank uses. A pure function of the facts about this machine.

use crate::VerbsError;
use crate::settings::Settings;
use ibverbs_sys::ibv_mtu;

/// A device, as far as the selection needs it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub name: String,
    /// The device executes atomics.
    pub atomics: bool,
    /// Vendor number.
    pub vendor: u32,
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

/// The selection of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index into the candidates.
    pub device: usize,
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

/// Selects the device that the settings name, or the first active one. Prefers devices with atomics, which windows
/// need.
pub(crate) fn choose(settings: &Settings, candidates: &[Result<Candidate, VerbsError>]) -> Result<Choice, VerbsError> {
    if candidates.is_empty() && settings.place.device.is_none() {
        return Err(VerbsError::NoDevice { source: None });
    }
    let mut why_not = Vec::new();
    let mut without_atomics = None;
    for (at, candidate) in candidates.iter().enumerate() {
        let usable = match candidate {
            Ok(device) => choose_port(settings, device)
                .and_then(|port| choose_address(settings, device, port))
                .map(|choice| (device.atomics, Choice { device: at, ..choice })),
            Err(error) => Err(VerbsError::unusable(String::new(), error.to_string())),
        };
        match usable {
            Ok((true, choice)) => return Ok(choice),
            Ok((false, choice)) => _ = without_atomics.get_or_insert(choice),
            // A device named by the user is never replaced.
            Err(error) if settings.place.device.is_some() => return Err(error),
            Err(VerbsError::Unusable { what, why }) if what.is_empty() => why_not.push(why),
            Err(error) => why_not.push(error.to_string()),
        }
    }
    without_atomics.ok_or_else(|| VerbsError::unusable("no RDMA device is usable".into(), why_not.join("; ")))
}

/// Selects like [`choose`], and adds similar ports as further rails: active ports with the same link type on devices of
/// the same vendor, in order. Large messages, puts and gets are divided among all rails.
pub(crate) fn choose_all(
    settings: &Settings,
    candidates: &[Result<Candidate, VerbsError>],
) -> Result<Vec<Choice>, VerbsError> {
    let first = choose(settings, candidates)?;
    let vendor = |candidate: &Candidate| candidate.vendor;
    let like = candidates[first.device].as_ref().ok().map(vendor);
    let ports = candidates.iter().enumerate().filter_map(|(at, candidate)| Some((at, candidate.as_ref().ok()?)));
    let ports = ports.flat_map(|(at, device)| device.ports.iter().map(move |port| (at, device, port)));
    let further = ports.filter_map(|(at, device, port)| {
        let usable = port.state == ACTIVE && settings.place.port.is_none_or(|wanted| wanted == port.number);
        let other = (at, port.number) != (first.device, first.port) && Some(device.vendor) == like;
        let choice = choose_address(settings, device, port).ok().filter(|choice| choice.link == first.link)?;
        (usable && other).then_some(Choice { device: at, ..choice })
    });
    Ok(std::iter::once(first).chain(further).take(settings.most_rails()).collect())
}

fn choose_port<'d>(settings: &Settings, device: &'d Candidate) -> Result<&'d Port, VerbsError> {
    let name = &device.name;
    if let Some(port) = settings.place.port.filter(|&wanted| device.ports.iter().all(|port| port.number != wanted)) {
        let why = format!("{name} has {} port(s), numbered from 1", device.ports.len());
        return Err(VerbsError::unusable(format!("TRANSOM_VERBS_PORT={port}"), why));
    }
    let mut asked = device.ports.iter().filter(|port| settings.place.port.is_none_or(|wanted| port.number == wanted));
    asked.clone().find(|port| port.state == ACTIVE).ok_or_else(|| {
        let down = asked.by_ref().map(|port| format!("port {} is {}", port.number, state_name(port.state)));
        let why = format!("{}; `ibv_devinfo` shows them", down.collect::<Vec<_>>().join(", "));
        VerbsError::unusable(format!("RDMA device {name} has no active port"), why)
    })
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
    use transom_channel::Paths;

    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
    const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

    fn settings() -> Settings {
        Settings::default()
    }

    fn port(number: u8, state: u32) -> Port {
        let gid = |index, raw, v2| Gid { index, raw, v2 };
        let gids = vec![gid(0, LOCAL, true), gid(1, V4, false), gid(2, V4, true), gid(3, V4, true)];
        Port { number, state, lid: 7, mtu: 3, ethernet: true, global: false, gids, pkeys: vec![(0, 0xffff)] }
    }

    fn device(name: &str, atomics: bool, ports: Vec<Port>) -> Result<Candidate, VerbsError> {
        Ok(Candidate { name: name.into(), atomics, vendor: 0x02c9, ports })
    }

    #[test]
    fn every_port_like_the_first_is_a_rail() {
        let infiniband = Port { ethernet: false, ..port(1, ACTIVE) };
        let soft = Candidate { name: "rxe0".into(), atomics: true, vendor: 0xff_ffff, ports: vec![port(1, ACTIVE)] };
        let devices = [
            device("down0", true, vec![port(1, 1)]),
            device("mlx5_0", true, vec![port(1, ACTIVE), port(2, ACTIVE)]),
            device("ib0", true, vec![infiniband]),
            Ok(soft),
            Err(VerbsError::unusable("mlx5_1".into(), "no permission".into())),
            device("mlx5_2", false, vec![port(1, 1), port(2, ACTIVE), port(3, ACTIVE), port(4, ACTIVE)]),
        ];
        let chosen = |settings: &Settings| {
            let rails = choose_all(settings, &devices).unwrap();
            rails.into_iter().map(|rail| (rail.device, rail.port)).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&settings()), [(1, 1), (1, 2), (5, 2), (5, 3)]);
        assert_eq!(chosen(&Settings { paths: Paths::Both, ..settings() }), [(1, 1), (1, 2), (5, 2)]);
        assert_eq!(chosen(&Settings { paths: Paths::Datagrams, ..settings() }), [(1, 1)]);
        let of_port = |port| Settings { place: RailName { port, ..RailName::default() }, ..settings() };
        assert_eq!(chosen(&of_port(Some(2))), [(1, 2), (5, 2)]);
        let error = choose_all(&settings(), &devices[..1]).unwrap_err().to_string();
        assert!(error.contains("port 1 is down"), "{error}");
    }

    #[test]
    fn device_with_atomics_is_preferred() {
        let devices = [
            device("efa0", false, vec![port(1, ACTIVE)]),
            device("down0", true, vec![port(1, 1)]),
            device("mlx5_0", true, vec![port(1, 1), port(2, ACTIVE)]),
        ];
        let chosen = choose(&settings(), &devices).unwrap();
        assert_eq!((chosen.device, chosen.port, chosen.gid.index, chosen.link), (2, 2, 2, Link::RoceV2));
        // A device without atomics is better than none: messages do not need them.
        assert_eq!(choose(&settings(), &devices[..2]).unwrap().device, 0);
    }

    #[test]
    fn unusable_devices_are_named_with_reasons() {
        let refused = Err(VerbsError::unusable("mlx5_1".into(), "no permission".into()));
        let error = choose(&settings(), &[refused, device("mlx5_0", true, vec![port(1, 1)])]).unwrap_err().to_string();
        assert!(error.contains("mlx5_1: no permission; ") && error.contains("port 1 is down"), "{error}");
        assert!(matches!(choose(&settings(), &[]), Err(VerbsError::NoDevice { .. })));
        let mut bare = port(1, ACTIVE);
        bare.gids.clear();
        let error = choose(&settings(), &[device("mlx5_0", true, vec![bare])]).unwrap_err().to_string();
        assert!(error.contains("ip address add"), "{error}");
    }

    #[test]
    fn requested_values_are_used_or_refused() {
        let mut two = port(2, ACTIVE);
        two.pkeys = vec![(0, 0xffff), (5, 0x8012)];
        let devices = [device("mlx5_0", true, vec![port(1, ACTIVE), two])];
        let with = |change: fn(&mut Settings)| {
            let mut settings = settings();
            change(&mut settings);
            choose(&settings, &devices)
        };
        assert_eq!(with(|asked| asked.place.gid = Some(3)).unwrap().gid.index, 3);
        assert_eq!(with(|asked| asked.mtu = Some(2)).unwrap().mtu, 2);
        let of_partition = with(|asked| (asked.place.port, asked.pkey) = (Some(2), Some(0x12))).unwrap();
        assert_eq!((of_partition.port, of_partition.pkey_index, of_partition.pkey), (2, 5, 0x8012));
        for (refused, wanted) in [
            (with(|asked| asked.place.gid = Some(9)), "no such GID index; it has 0, 1, 2, 3"),
            (with(|asked| asked.mtu = Some(5)), "active MTU of 1024 bytes"),
            (with(|asked| asked.place.port = Some(3)), "2 port(s)"),
            (with(|asked| asked.pkey = Some(0x12)), "TRANSOM_VERBS_PKEY=0x0012: port 1 of mlx5_0 is not"),
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
            choose(&settings, &[device("mlx5_0", true, vec![port])]).map(|choice| (choice.pkey_index, choice.pkey)).ok()
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
        let chosen = |port: &Port| choose(&settings(), &[device("mlx5_0", true, vec![port.clone()])]).unwrap();
        assert_eq!((chosen(&infiniband).global, chosen(&infiniband).link), (false, Link::InfiniBand));
        infiniband.global = true;
        assert!(chosen(&infiniband).global);
    }
}
