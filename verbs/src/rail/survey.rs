//! Examination of this machine's devices, before the ranks select the rails among them. Devices that are not selected are
//! closed again.

use super::Rail;
use super::choose::{Candidate, Choice, FULL_MEMBER, Gid, Port, choose};
use super::pairing::{Offer, OfferedPort, local_rank, rails};
use super::place::{Place, allowed_cores};
use super::trial::SHARED_RECEIVES;
use crate::VerbsError;
use crate::settings::Settings;
use crate::sys::{Context, Listed, devices};
use ibverbs_sys::*;
use transom_channel::Paths;
use transom_locks::Rank;

/// The ports that this rank could use, with their open devices.
pub(crate) struct Survey<'s> {
    settings: &'s Settings,
    listed: Vec<Listed>,
    /// Open devices, by the indices of the choices, until a rail takes them; with their positions in the list.
    opened: Vec<(Option<Context>, usize)>,
    choices: Vec<Choice>,
    offer: Offer,
}

/// Port flag: the subnet requires a GRH.
const GRH_REQUIRED: u8 = 1;

impl<'s> Survey<'s> {
    /// Examines the devices that the settings name, or all.
    pub fn new(settings: &'s Settings) -> Result<Self, VerbsError> {
        let listed = devices()?;
        let is_named = !settings.named.is_empty();
        let (opened, choices) = if is_named { named(&listed, settings)? } else { all(&listed, settings)? };
        let interfaces = transom_launch::interfaces();
        let port = |choice: &Choice| {
            let device = &listed[opened[choice.device].1];
            OfferedPort::new(&device.name, device.guid, choice, &interfaces)
        };
        let offer = Offer { is_named, ports: choices.iter().map(port).collect() };
        Ok(Survey { settings, listed, opened, choices, offer })
    }

    /// The ports, for the other ranks.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Opens the rails of rank `me`, given the offers of all ranks.
    pub fn open(mut self, offers: &[Offer], me: Rank) -> Result<Vec<Rail>, VerbsError> {
        let local_rank = local_rank(offers, me);
        let chosen = rails(offers, me, self.settings.most_rails())?;
        let open = |port: usize| {
            let choice = self.choices[port];
            let (context, device) = &mut self.opened[choice.device];
            // Each rail has its own context.
            let mut context = context.take().map_or_else(|| self.listed[*device].open(), Ok)?;
            context.spread_completions(local_rank);
            Rail::new(context, choice, self.settings)
        };
        let rails = chosen.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        refuse_twice(&rails).map(|()| rails)
    }

    /// Opens the rails of a job that has only this rank.
    pub fn open_alone(self) -> Result<Vec<Rail>, VerbsError> {
        let offers = [self.offer.clone()];
        self.open(&offers, 0)
    }
}

fn refuse_twice(rails: &[Rail]) -> Result<(), VerbsError> {
    let place = |rail: &Rail| (rail.name().to_owned(), rail.port(), rail.choice.gid.index);
    let twice = |(at, rail): &(usize, &Rail)| rails[..*at].iter().any(|before| place(before) == place(rail));
    let Some((_, rail)) = rails.iter().enumerate().find(twice) else { return Ok(()) };
    let (name, port, gid) = place(rail);
    let what = format!("TRANSOM_VERBS_DEVICE: {name}:{port}:{gid} is listed twice");
    Err(VerbsError::unusable(what, "name another device, port or address for each rail".into()))
}

type Found = (Vec<(Option<Context>, usize)>, Vec<Choice>);

/// All usable ports.
fn all(listed: &[Listed], settings: &Settings) -> Result<Found, VerbsError> {
    let (mut opened, mut candidates) = (Vec::new(), Vec::new());
    for (at, device) in listed.iter().enumerate() {
        let (context, candidate) = look(device, settings).map_or_else(|e| (None, Err(e)), |(c, d)| (Some(c), Ok(d)));
        opened.push((context, at));
        candidates.push(candidate);
    }
    let choices = choose(settings, &candidates)?;
    Ok((opened, choices))
}

/// The ports that the settings name, each with a device of its own.
fn named(listed: &[Listed], settings: &Settings) -> Result<Found, VerbsError> {
    // An excess is reported when messages start.
    let (mut opened, mut choices) = (Vec::new(), Vec::new());
    for (rail, place) in settings.named.iter().enumerate() {
        let settings = settings.at(place);
        let wanted = settings.place.device.as_deref().unwrap_or_default();
        let Some(device) = listed.iter().position(|device| device.name == wanted) else {
            let there = listed.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
            let why = if there.is_empty() {
                "this machine has none".to_owned()
            } else {
                format!("available: {}", there.join(", "))
            };
            return Err(VerbsError::unusable(format!("TRANSOM_VERBS_DEVICE={wanted}: no such RDMA device"), why));
        };
        let (context, candidate) = look(&listed[device], &settings)?;
        let ports = choose(&settings, &[Ok(candidate)])?;
        choices.extend(ports.first().map(|choice| Choice { device: rail, ..*choice }));
        opened.push((Some(context), device));
    }
    Ok((opened, choices))
}

/// Opens a device and reads the facts for the selection.
fn look(device: &Listed, settings: &Settings) -> Result<(Context, Candidate), VerbsError> {
    if let Some(transport) = foreign(device.transport) {
        let why = format!("{transport}; TRANSOM_FABRIC=tcp does without RDMA");
        return Err(VerbsError::unusable(format!("RDMA device {}", device.name), why));
    }
    let context = device.open()?;
    let ports = 1..=context.limits.phys_port_cnt.max(1);
    let ports = ports.map(|port| look_at_port(&context, port, settings)).collect::<Result<_, _>>()?;
    let (name, vendor) = (device.name.clone(), context.limits.vendor_id);
    let place = Place::of(context.near_cores().as_deref(), &allowed_cores());
    let lacks = lacks(&context.limits, settings.paths);
    Ok((context, Candidate { name, lacks, vendor, place, ports }))
}

/// The reason why no device of a transport can be used, if there is one.
fn foreign(transport: ibv_transport_type) -> Option<&'static str> {
    match transport {
        IBV_TRANSPORT_IWARP => Some("it uses iWARP, which has no datagrams (UD) and no atomics"),
        IBV_TRANSPORT_USNIC | IBV_TRANSPORT_USNIC_UDP | IBV_TRANSPORT_UNSPECIFIED => {
            Some("its transport is not InfiniBand's (EFA, usNIC): it has no reliable connections (RC) and no atomics")
        }
        _ => None,
    }
}

/// The function that a device lacks for windows or messages, and what to do.
fn lacks(limits: &ibv_device_attr, paths: Paths) -> Option<String> {
    let least = SHARED_RECEIVES as i32;
    if limits.atomic_cap == IBV_ATOMIC_NONE {
        return Some(
            "it has no atomics, which windows need; set TRANSOM_FABRIC=tcp, or name it by TRANSOM_VERBS_DEVICE for messages \
             alone"
                .into(),
        );
    }
    let has_shared = limits.max_srq > 0 && limits.max_srq_wr >= least && limits.max_cqe >= least;
    (!has_shared && paths != Paths::Datagrams).then(|| {
        format!(
            "it has no shared receive queues of {least} buffers (max_srq {}, max_srq_wr {}, max_cqe {}), which messages \
             need; set TRANSOM_FABRIC=tcp or TRANSOM_MESSAGES=paths=ud, or name it by TRANSOM_VERBS_DEVICE for windows alone",
            limits.max_srq, limits.max_srq_wr, limits.max_cqe
        )
    })
}

fn look_at_port(context: &Context, port: u8, settings: &Settings) -> Result<Port, VerbsError> {
    let asked = context.port(port)?;
    let ethernet = u32::from(asked.link_layer) == IBV_LINK_LAYER_ETHERNET;
    // Each lookup is a system call. On InfiniBand the first GID suffices unless one is requested.
    let gids = if ethernet || settings.place.gid.is_some() { asked.gid_tbl_len.clamp(0, 256) } else { 1 };
    let mut pkeys: Vec<(u16, u16)> = Vec::new();
    for index in 0..asked.pkey_tbl_len {
        pkeys.extend(context.pkey(port, index).map(|pkey| (index, pkey)));
        // Most ports are full members of their first partition.
        if settings.pkey.is_none() && pkeys.last().is_some_and(|(_, pkey)| pkey & FULL_MEMBER != 0) {
            break;
        }
    }
    let gid = |index: u8| {
        let raw = context.gid(port, index)?;
        Some(Gid { index, raw, v2: ethernet && context.gid_is_v2(port, index) })
    };
    // The code of libibverbs has 8 bits, too few for the speed of XDR.
    let rate = || bandwidth(asked.active_width.into(), asked.active_speed.into());
    Ok(Port {
        number: port,
        state: asked.state,
        lid: asked.lid,
        mtu: asked.active_mtu,
        rate: context.rate(port).unwrap_or_else(rate),
        ethernet,
        global: asked.flags & GRH_REQUIRED != 0,
        gids: (0..gids).filter_map(|index| gid(index as u8)).collect(),
        pkeys,
    })
}

/// Bandwidth in Mb/s for a port's width and speed codes of the InfiniBand specification.
fn bandwidth(width: u32, speed: u32) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let each = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * each
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_follows_width_and_speed() {
        assert_eq!([bandwidth(2, 32), bandwidth(1, 1), bandwidth(8, 4)], [100_000, 2_500, 120_000]);
        assert_eq!([bandwidth(3, 1), bandwidth(1, 0)], [0, 0]);
    }

    #[test]
    fn missing_functions_are_named() {
        let (atomic_cap, max_srq, max_srq_wr, max_cqe) = (IBV_ATOMIC_HCA, 1, 1024, 1024);
        let able = ibv_device_attr { atomic_cap, max_srq, max_srq_wr, max_cqe, ..Default::default() };
        assert_eq!(lacks(&able, Paths::Connections), None);
        let atomics = lacks(&ibv_device_attr { atomic_cap: IBV_ATOMIC_NONE, ..able }, Paths::Datagrams).unwrap();
        assert!(atomics.starts_with("it has no atomics"), "{atomics}");
        for few in [
            ibv_device_attr { max_srq: 0, ..able },
            ibv_device_attr { max_srq_wr: 1023, ..able },
            ibv_device_attr { max_cqe: 1023, ..able },
        ] {
            let shared = lacks(&few, Paths::Both).unwrap();
            assert!(
                shared.contains("no shared receive queues of 1024 buffers") && shared.contains("1023")
                    || few.max_srq == 0
            );
            assert_eq!(lacks(&few, Paths::Datagrams), None);
        }
        assert_eq!([IBV_TRANSPORT_IB, IBV_TRANSPORT_UNKNOWN].map(foreign), [None; 2]);
        assert!(
            [IBV_TRANSPORT_IWARP, IBV_TRANSPORT_USNIC, IBV_TRANSPORT_UNSPECIFIED]
                .map(foreign)
                .iter()
                .all(Option::is_some)
        );
    }
}
