//! The RDMA devices of this machine, and open devices.

use super::library::{Library, done, library};
use super::refused;
use crate::VerbsError;
use ibverbs_sys::*;
use std::ffi::CStr;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::rc::Rc;

/// The device list. Freed when dropped.
struct List(NonNull<*mut ibv_device>, usize, &'static Library);

/// A device in the list.
pub(crate) struct Listed {
    pub name: String,
    /// Identifies the adapter: its ports share it, and so do its virtual functions on several hosts' virtual machines.
    pub guid: u64,
    /// Transport as libibverbs numbers it: InfiniBand (also RoCE), iWARP, or one of a vendor.
    pub transport: ibv_transport_type,
    /// The device's folder in sysfs.
    folder: PathBuf,
    device: *mut ibv_device,
    list: Rc<List>,
}

/// All devices of this machine, without opening them.
pub(crate) fn devices() -> Result<Vec<Listed>, VerbsError> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: no conditions.
    let list = NonNull::new(unsafe { (library.ibv_get_device_list)(&mut count) });
    // A kernel without RDMA support returns ENOSYS, which means that there is no device.
    let source = std::io::Error::last_os_error();
    let list = list.ok_or(VerbsError::NoDevice { source: Some(source) })?;
    let list = Rc::new(List(list, count.max(0) as usize, library));
    // SAFETY: the array has that many entries and lives as long as the list.
    let devices = unsafe { std::slice::from_raw_parts(list.0.as_ptr(), list.1) };
    let listed = |&device: &*mut ibv_device| {
        // SAFETY: the list is not freed yet, and libibverbs ends each text with a zero.
        let (folder, transport) = unsafe { (CStr::from_ptr((*device).ibdev_path.as_ptr()), (*device).transport_type) };
        Listed {
            // SAFETY: as above.
            name: unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) }.to_string_lossy().into_owned(),
            // SAFETY: as above. The value is in network byte order.
            guid: u64::from_be(unsafe { (library.ibv_get_device_guid)(device) }),
            transport,
            folder: folder.to_string_lossy().into_owned().into(),
            device,
            list: list.clone(),
        }
    };
    Ok(devices.iter().map(listed).collect())
}

impl Listed {
    pub fn open(&self) -> Result<Context, VerbsError> {
        let library = self.list.2;
        // SAFETY: the device belongs to a list that is not freed yet.
        let raw = NonNull::new(unsafe { (library.ibv_open_device)(self.device) });
        let raw = raw.ok_or_else(|| refused(format!("opening RDMA device {}", self.name)))?;
        let (name, folder, limits) = (self.name.clone(), self.folder.clone(), ibv_device_attr::default());
        let mut context = Context { raw, library, name, folder, guid: self.guid, vector: 0, limits };
        // SAFETY: the context is open.
        let failed = unsafe { (library.ibv_query_device)(raw.as_ptr(), &mut context.limits) };
        done(failed).map_err(|source| VerbsError::system(format!("querying RDMA device {}", context.name), source))?;
        Ok(context)
    }
}

/// An open device. Closed when dropped.
pub(crate) struct Context {
    pub(super) raw: NonNull<ibv_context>,
    pub(super) library: &'static Library,
    pub name: String,
    pub guid: u64,
    pub limits: ibv_device_attr,
    /// Completion vector: the interrupt of completion queues that are created from now on.
    pub(super) vector: u32,
    /// The device's folder in sysfs.
    folder: PathBuf,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above; its objects have their own locks.
unsafe impl Sync for Context {}

impl Context {
    /// Returns whether the adapter executes atomics that are atomic at least with respect to each other.
    pub fn has_atomics(&self) -> bool {
        has_atomics(&self.limits)
    }

    pub fn port(&self, port: u8) -> Result<ibv_port_attr, VerbsError> {
        let mut attributes = ibv_port_attr::default();
        // SAFETY: the context is open; the exported function fills no more than today's structure.
        done(unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), port, &mut attributes) }).map_err(|source| {
            VerbsError::system(format!("querying port {port} of RDMA device {}", self.name), source)
        })?;
        Ok(attributes)
    }

    /// A GID of a port; `None` for an empty entry.
    pub fn gid(&self, port: u8, index: u8) -> Option<[u8; 16]> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open.
        done(unsafe { (self.library.ibv_query_gid)(self.raw.as_ptr(), port, index.into(), &mut gid) }).ok()?;
        // SAFETY: all its bytes are initialised.
        Some(unsafe { gid.raw }).filter(|raw| *raw != [0; 16])
    }

    /// Returns whether a GID is of RoCE v2.
    pub fn gid_is_v2(&self, port: u8, index: u8) -> bool {
        self.sysfs(&format!("ports/{port}/gid_attrs/types/{index}")).is_some_and(|kind| kind.contains("v2"))
    }

    /// The traffic class that the administrator has set for RoCE connections of a port.
    pub fn traffic_class(&self, port: u8) -> Option<u8> {
        parse_traffic_class(&self.sysfs(&format!("tc/{port}/traffic_class"))?)
    }

    /// Bandwidth of a port in Mb/s, as the kernel reports it for every speed that it knows.
    pub fn rate(&self, port: u8) -> Option<u32> {
        parse_rate(&self.sysfs(&format!("ports/{port}/rate"))?)
    }

    /// The list of the cores that are near the device.
    pub fn near_cores(&self) -> Option<String> {
        self.sysfs("device/local_cpulist")
    }

    /// A file of the device in sysfs; `None` if there is none.
    fn sysfs(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.folder.join(file)).ok()
    }

    /// Selects the completion vector, of those that the device has, for completion queues that are created from now on.
    pub fn spread_completions(&mut self, number: usize) {
        // SAFETY: the context is open.
        let vectors = unsafe { self.raw.as_ref() }.num_comp_vectors.max(1) as usize;
        self.vector = (number % vectors) as u32;
    }

    /// A partition key of a port; `None` for an empty entry.
    pub fn pkey(&self, port: u8, index: u16) -> Option<u16> {
        let mut pkey = 0;
        // SAFETY: the context is open.
        done(unsafe { (self.library.ibv_query_pkey)(self.raw.as_ptr(), port, index.into(), &mut pkey) }).ok()?;
        // In network byte order.
        Some(u16::from_be(pkey)).filter(|&pkey| pkey != 0)
    }

    /// The text of a completion status.
    pub fn status(&self, status: u32) -> String {
        self.library.status(status)
    }
}

fn has_atomics(limits: &ibv_device_attr) -> bool {
    limits.atomic_cap != IBV_ATOMIC_NONE
}

/// The class in a file such as `Global tclass=106`; `None` if none is set.
fn parse_traffic_class(text: &str) -> Option<u8> {
    let (_, number) = text.lines().next()?.split_once("tclass=")?;
    number.trim().parse().ok()
}

/// The rate in a file such as `100 Gb/sec (4X EDR)`, in Mb/s.
fn parse_rate(text: &str) -> Option<u32> {
    let (gigabits, _) = text.split_once(" Gb/sec")?;
    let megabits = gigabits.trim().parse::<f64>().ok()? * 1000.0;
    (0.0 < megabits && megabits < f64::from(u32::MAX)).then_some(megabits as u32)
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened once; its objects hold a reference and are gone.
        unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: obtained by `devices`; freed once.
        unsafe { (self.2.ibv_free_device_list)(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_class_of_a_port_is_parsed() {
        assert_eq!(parse_traffic_class("Global tclass=106\nsrc_ip=10.0.0.1,tclass=96\n"), Some(106));
        assert_eq!([parse_traffic_class(""), parse_traffic_class("Global tclass=-1\n")], [None, None]);
    }

    #[test]
    fn atomics_follow_the_device_capability() {
        let device = |atomic_cap| ibv_device_attr { atomic_cap, ..Default::default() };
        assert!(!has_atomics(&device(IBV_ATOMIC_NONE)));
        assert!(has_atomics(&device(IBV_ATOMIC_HCA)) && has_atomics(&device(IBV_ATOMIC_GLOB)));
    }

    #[test]
    fn rate_of_a_port_is_parsed() {
        let rate = |text| parse_rate(text);
        assert_eq!([rate("100 Gb/sec (4X EDR)\n"), rate("2.5 Gb/sec (1X SDR)\n")], [Some(100_000), Some(2_500)]);
        assert_eq!(rate("800 Gb/sec (4X XDR)\n"), Some(800_000));
        for unknown in ["", "fast", "x Gb/sec", "-4 Gb/sec", "0 Gb/sec", "nan Gb/sec", "1e30 Gb/sec"] {
            assert_eq!(rate(unknown), None, "{unknown}");
        }
    }
}
