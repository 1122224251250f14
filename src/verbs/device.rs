//! An RDMA device, opened: its port, its address, what it can do.

use super::VerbsError;
use super::library::{Library, done, library};
use super::settings::{NotifyBy, Settings};
use ibverbs_sys::*;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// An open device with a protection domain. Closed when dropped, after all that was made of it.
pub(super) struct Device {
    pub library: &'static Library,
    pub context: NonNull<ibv_context>,
    pub domain: NonNull<ibv_pd>,
    pub name: String,
    pub port: u8,
    pub gid_index: u8,
    pub gid: [u8; 16],
    pub lid: u16,
    /// RoCE: peers are named by GID; on InfiniBand by LID, unless a GID was asked for.
    pub global: bool,
    pub mtu: ibv_mtu,
    pub limits: ibv_device_attr,
    pub notify_by: NotifyBy,
    /// Bytes registered with it now.
    pub registered: AtomicUsize,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Device {}
// SAFETY: as above; its objects have locks of their own.
unsafe impl Sync for Device {}

/// Of Soft-RoCE: its devices say so.
const SOFT_ROCE: u32 = 0xff_ffff;

impl Device {
    /// The device and port that the settings name, or the first that is up.
    pub fn open(settings: &Settings) -> Result<Self, VerbsError> {
        let library = library()?;
        let list = List::get(library)?;
        let mut why_not = Vec::new();
        for &device in list.devices() {
            // SAFETY: the list is not freed yet; names are static in the device.
            let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) }.to_string_lossy().into_owned();
            if settings.device.as_ref().is_some_and(|wanted| *wanted != name) {
                why_not.push(format!("there is {name}"));
                continue;
            }
            match Self::open_one(library, device, name, settings) {
                Ok(device) => return Ok(device),
                // What was named by the user is not replaced by something else.
                Err(error) if settings.device.is_some() => return Err(error),
                Err(error) => why_not.push(error.to_string()),
            }
        }
        match &settings.device {
            Some(wanted) => {
                let what = format!("TRANSOM_VERBS_DEVICE={wanted}: no such RDMA device");
                let why = if why_not.is_empty() { "there is none at all".to_owned() } else { why_not.join(", ") };
                Err(VerbsError::Unusable { what, why })
            }
            None if why_not.is_empty() => Err(VerbsError::NoDevice { source: None }),
            None => Err(VerbsError::Unusable { what: "no RDMA device is usable".into(), why: why_not.join("; ") }),
        }
    }

    fn open_one(
        library: &'static Library,
        device: *mut ibv_device,
        name: String,
        settings: &Settings,
    ) -> Result<Self, VerbsError> {
        let failed = |what: &str| VerbsError::system(format!("{what} of RDMA device {name}"), last_error());
        // SAFETY: a device of a list that is not freed yet.
        let context = NonNull::new(unsafe { (library.ibv_open_device)(device) });
        let context = Context(context.ok_or_else(|| failed("opening"))?, library);
        let mut limits = ibv_device_attr::default();
        // SAFETY: the context is open.
        done(unsafe { (library.ibv_query_device)(context.0.as_ptr(), &mut limits) })
            .map_err(|source| VerbsError::system(format!("asking the limits of RDMA device {name}"), source))?;
        let (port, attributes) = choose_port(library, &context, &name, &limits, settings)?;
        let ethernet = u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET;
        let (gid_index, gid) = choose_gid(library, &context, &name, port, &attributes, ethernet, settings)?;
        // SAFETY: the context is open.
        let domain = NonNull::new(unsafe { (library.ibv_alloc_pd)(context.0.as_ptr()) });
        let domain = domain.ok_or_else(|| failed("a protection domain"))?;
        let notify_by = settings.notify_by.unwrap_or(match limits.vendor_id {
            SOFT_ROCE => NotifyBy::Atomic,
            _ => NotifyBy::Write,
        });
        let mtu = settings.mtu.map_or(attributes.active_mtu, |mtu| mtu.min(attributes.active_mtu));
        if settings.mtu.is_some_and(|wanted| wanted > attributes.active_mtu) {
            // SAFETY: the domain was just made, and nothing of it.
            unsafe { (library.ibv_dealloc_pd)(domain.as_ptr()) };
            let why = format!("port {port} of {name} has {} bytes active", 128 << attributes.active_mtu);
            return Err(VerbsError::Unusable { what: "TRANSOM_VERBS_MTU".into(), why });
        }
        tracing::info!(device = name, port, gid_index, ?notify_by, mtu = 128 << mtu, "RDMA device opened");
        Ok(Device {
            library,
            context: context.keep(),
            domain,
            name,
            port,
            gid_index,
            gid,
            lid: attributes.lid,
            global: ethernet || settings.gid.is_some(),
            mtu,
            limits,
            notify_by,
            registered: AtomicUsize::new(0),
        })
    }

    /// Whether it executes atomics, that are atomic at least towards each other.
    pub fn has_atomics(&self) -> bool {
        has_atomics(&self.limits)
    }

    /// An error if its port is not active any more.
    pub fn port_is_up(&self) -> Result<(), VerbsError> {
        match port_attributes(self.library, self.context, &self.name, self.port)?.state {
            ibv_port_state::IBV_PORT_ACTIVE => Ok(()),
            state => Err(VerbsError::Unusable {
                what: format!("port {} of RDMA device {}", self.port, self.name),
                why: format!("it is {}", state_name(state)),
            }),
        }
    }

    /// In a line, for people.
    pub fn describe(&self) -> String {
        let link = if self.global { "RoCE" } else { "InfiniBand" };
        let atomics = if self.has_atomics() { "atomics" } else { "no atomics, so no windows" };
        let mtu = 128 << self.mtu;
        format!("{}, port {}, {link}, GID index {}, MTU {mtu}, {atomics}", self.name, self.port, self.gid_index)
    }

    /// Where a peer is, for a queue pair or a datagram.
    pub fn route(&self, gid: [u8; 16], lid: u16, service_level: u8) -> ibv_ah_attr {
        let mut route = ibv_ah_attr { dlid: lid, sl: service_level, port_num: self.port, ..Default::default() };
        if self.global {
            route.is_global = 1;
            route.grh.dgid.raw = gid;
            route.grh.sgid_index = self.gid_index;
            route.grh.hop_limit = 64;
        }
        route
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: made by `open_one`, and used by nobody any more.
        unsafe {
            (self.library.ibv_dealloc_pd)(self.domain.as_ptr());
            (self.library.ibv_close_device)(self.context.as_ptr());
        }
    }
}

pub(super) fn has_atomics(limits: &ibv_device_attr) -> bool {
    limits.atomic_cap != IBV_ATOMIC_NONE
}

pub(super) fn last_error() -> io::Error {
    io::Error::last_os_error()
}

/// Closed when dropped.
struct Context(NonNull<ibv_context>, &'static Library);

impl Context {
    fn keep(self) -> NonNull<ibv_context> {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: open, and nothing was made of it.
        unsafe { (self.1.ibv_close_device)(self.0.as_ptr()) };
    }
}

/// The devices of this machine. Freed when dropped.
struct List(NonNull<*mut ibv_device>, usize, &'static Library);

impl List {
    fn get(library: &'static Library) -> Result<Self, VerbsError> {
        let mut devices = 0;
        // SAFETY: no conditions.
        let list = unsafe { (library.ibv_get_device_list)(&mut devices) };
        // A kernel without RDMA is an error there (ENOSYS); it means that there is no device.
        let list = NonNull::new(list).ok_or_else(|| VerbsError::NoDevice { source: Some(last_error()) })?;
        Ok(List(list, devices.max(0) as usize, library))
    }

    fn devices(&self) -> &[*mut ibv_device] {
        // SAFETY: an array of so many, alive as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.1) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: got by `get`, freed once.
        unsafe { (self.2.ibv_free_device_list)(self.0.as_ptr()) };
    }
}

fn choose_port(
    library: &Library,
    context: &Context,
    name: &str,
    limits: &ibv_device_attr,
    settings: &Settings,
) -> Result<(u8, ibv_port_attr), VerbsError> {
    let ports = limits.phys_port_cnt.max(1);
    if let Some(port) = settings.port.filter(|&port| port > ports) {
        let what = format!("TRANSOM_VERBS_PORT={port}");
        return Err(VerbsError::Unusable { what, why: format!("{name} has {ports} port(s), from 1 on") });
    }
    let mut down = Vec::new();
    for port in settings.port.map_or(1..=ports, |port| port..=port) {
        let attributes = port_attributes(library, context.0, name, port)?;
        match attributes.state {
            ibv_port_state::IBV_PORT_ACTIVE => return Ok((port, attributes)),
            state => down.push(format!("port {port} is {}", state_name(state))),
        }
    }
    let why = format!("{}; `ibv_devinfo` shows them", down.join(", "));
    Err(VerbsError::Unusable { what: format!("RDMA device {name} has no active port"), why })
}

fn port_attributes(
    library: &Library,
    context: NonNull<ibv_context>,
    name: &str,
    port: u8,
) -> Result<ibv_port_attr, VerbsError> {
    let mut attributes = ibv_port_attr::default();
    // SAFETY: the context is open; the exported function fills no more than the structure of today has.
    done(unsafe { (library.ibv_query_port)(context.as_ptr(), port, &mut attributes) })
        .map_err(|source| VerbsError::system(format!("asking port {port} of RDMA device {name}"), source))?;
    Ok(attributes)
}

fn state_name(state: ibv_port_state::Type) -> &'static str {
    ["nop", "down", "initialising", "armed", "active", "active, deferred"].get(state as usize).unwrap_or(&"unknown")
}

fn choose_gid(
    library: &Library,
    context: &Context,
    name: &str,
    port: u8,
    attributes: &ibv_port_attr,
    ethernet: bool,
    settings: &Settings,
) -> Result<(u8, [u8; 16]), VerbsError> {
    let read = |index: u8| {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open.
        done(unsafe { (library.ibv_query_gid)(context.0.as_ptr(), port, index.into(), &mut gid) }).ok()?;
        // SAFETY: all bytes of it are initialised.
        Some(unsafe { gid.raw }).filter(|raw| *raw != [0; 16])
    };
    let most = attributes.gid_tbl_len.clamp(0, 256);
    if let Some(index) = settings.gid {
        let what = format!("TRANSOM_VERBS_GID={index}");
        let there = (0..most).filter(|&index| read(index as u8).is_some()).map(|index| index.to_string());
        let why =
            || format!("port {port} of {name} has no such address; it has {}", there.collect::<Vec<_>>().join(", "));
        return read(index).map(|gid| (index, gid)).ok_or_else(|| VerbsError::Unusable { what, why: why() });
    }
    if !ethernet {
        return Ok((0, read(0).unwrap_or_default()));
    }
    // RoCE v2 passes routers, and IPv4 is what most networks have; v1 and link-local addresses come last.
    let version_two = |index: i32| {
        let path = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
        std::fs::read_to_string(path).is_ok_and(|kind| kind.contains("v2"))
    };
    let worth = |index: &i32| {
        let gid = read(*index as u8)?;
        let is_v4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
        let link_local = gid[0] == 0xfe;
        Some((version_two(*index), is_v4, !link_local, -*index))
    };
    let best = (0..most).filter_map(|index| worth(&index).map(|worth| (worth, index as u8))).max();
    let best = best.and_then(|(_, index)| Some((index, read(index)?)));
    best.ok_or_else(|| VerbsError::Unusable {
        what: format!("port {port} of RDMA device {name}"),
        why: "it has no address; give its network interface one (`ip address add`)".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_says_whether_it_has_atomics() {
        let device = |atomic_cap| ibv_device_attr { atomic_cap, ..Default::default() };
        assert!(!has_atomics(&device(IBV_ATOMIC_NONE)));
        assert!(has_atomics(&device(IBV_ATOMIC_HCA)) && has_atomics(&device(IBV_ATOMIC_GLOB)));
    }
}
