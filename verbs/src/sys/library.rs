//! libibverbs, loaded at run time, so that programs start on machines without it.
//!
//! Types come from `ibverbs-sys`, which checks their layout at build time. The few verbs that libibverbs defines inline
//! in its header go through the function table of the device's context, as in C.

use crate::VerbsError;
use ibverbs_sys::*;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

type IsForkInitialized = unsafe extern "C" fn() -> ibv_fork_status;
type QueryDataInOrder = unsafe extern "C" fn(*mut ibv_qp, ibv_wr_opcode::Type, u32) -> c_int;

/// Defines the table of functions used.
macro_rules! library {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(crate) struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Missing before rdma-core 36.
            pub ibv_query_qp_data_in_order: Option<QueryDataInOrder>,
            /// Missing before rdma-core 35.
            ibv_is_fork_initialized: Option<IsForkInitialized>,
            /// Never unloaded: its device providers start threads and keep state.
            _library: std::mem::ManuallyDrop<libloading::Library>,
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: the initialisers of libibverbs have no preconditions.
                let library = unsafe { libloading::Library::new("libibverbs.so.1") }?;
                Ok(Library {
                    // SAFETY: as below.
                    ibv_query_qp_data_in_order: unsafe { library.get(b"ibv_query_qp_data_in_order\0") }.ok().map(|f| *f),
                    // SAFETY: as below.
                    ibv_is_fork_initialized: unsafe { library.get(b"ibv_is_fork_initialized\0") }.ok().map(|f| *f),
                    // SAFETY: the signature is that of libibverbs' header, of the version in the file name.
                    $($name: *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }?,)*
                    _library: std::mem::ManuallyDrop::new(library),
                })
            }
        }
    };
}

library! {
    ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(*mut *mut ibv_device);
    ibv_get_device_name(*mut ibv_device) -> *const c_char;
    ibv_get_device_guid(*mut ibv_device) -> u64;
    ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    ibv_close_device(*mut ibv_context) -> c_int;
    ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
    ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    ibv_dereg_mr(*mut ibv_mr) -> c_int;
    ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    ibv_destroy_cq(*mut ibv_cq) -> c_int;
    ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(*mut ibv_cq, c_uint);
    ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibv_destroy_srq(*mut ibv_srq) -> c_int;
    ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(*mut ibv_qp) -> c_int;
    ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_destroy_ah(*mut ibv_ah) -> c_int;
    ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(*mut ibv_async_event);
    ibv_fork_init() -> c_int;
    ibv_wc_status_str(ibv_wc_status::Type) -> *const c_char;
}

/// libibverbs, if it is installed.
pub(crate) fn library() -> Result<&'static Library, VerbsError> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let library = Library::load().map_err(|error| error.to_string())?;
        // SAFETY: called before any other function. It does nothing if the kernel copies registered pages on fork.
        if let Err(error) = done(unsafe { (library.ibv_fork_init)() }) {
            tracing::warn!(%error, "fork is not supported: a program that forks may lose puts to its registered memory");
        }
        Ok(library)
    });
    loaded.as_ref().map_err(|why| VerbsError::Library { why: why.clone() })
}

impl Library {
    /// Returns whether libibverbs itself keeps registered pages from children, because the kernel does not copy such
    /// pages on fork (Linux before 5.12). It does so by small pages, unless RDMAV_HUGEPAGES_SAFE is set.
    pub fn keeps_pages_from_children(&self) -> bool {
        // SAFETY: no conditions.
        self.ibv_is_fork_initialized.is_some_and(|ask| unsafe { ask() } == IBV_FORK_ENABLED)
    }

    /// The text of a completion status.
    pub fn status(&self, status: ibv_wc_status::Type) -> String {
        // SAFETY: any number is allowed, and the text is static.
        unsafe { std::ffi::CStr::from_ptr((self.ibv_wc_status_str)(status)) }.to_string_lossy().into_owned()
    }
}

/// Takes up to `into.len()` completions; returns their number.
///
/// # Safety
/// The completion queue must be alive.
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, into: &mut [std::mem::MaybeUninit<ibv_wc>]) -> Result<usize, i32> {
    // SAFETY: caller's contract; every device has the function, and it writes at most `into.len()` entries.
    let polled = unsafe {
        let poll = (*(*cq).context).ops.poll_cq.expect("every device has poll_cq");
        poll(cq, into.len() as c_int, into.as_mut_ptr().cast())
    };
    usize::try_from(polled).map_err(|_| polled)
}

/// Posts a request to a queue pair.
///
/// # Safety
/// The queue pair must be alive and the request valid. The request's memory must stay registered until it is complete.
#[inline]
pub(crate) unsafe fn post_send(qp: *mut ibv_qp, request: &mut ibv_send_wr) -> std::io::Result<()> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: caller's contract; every device has the function.
    let failed = unsafe {
        let post = (*(*qp).context).ops.post_send.expect("every device has post_send");
        post(qp, request, &mut bad)
    };
    done(failed)
}

/// Posts a receive to a queue pair.
///
/// # Safety
/// The contract of [`post_send`] applies.
pub(crate) unsafe fn post_recv(qp: *mut ibv_qp, request: &mut ibv_recv_wr) -> std::io::Result<()> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: caller's contract; every device has the function.
    let failed = unsafe {
        let post = (*(*qp).context).ops.post_recv.expect("every device has post_recv");
        post(qp, request, &mut bad)
    };
    done(failed)
}

/// Posts a chain of receives to a shared receive queue.
///
/// # Safety
/// The contract of [`post_send`] applies to the shared receive queue.
pub(crate) unsafe fn post_srq_recv(srq: *mut ibv_srq, first: &mut ibv_recv_wr) -> std::io::Result<()> {
    let mut bad = std::ptr::null_mut();
    // SAFETY: caller's contract; every device with shared receive queues has the function.
    let failed = unsafe {
        let post = (*(*srq).context).ops.post_srq_recv.expect("the device has post_srq_recv");
        post(srq, first, &mut bad)
    };
    done(failed)
}

/// Requests an event for the next completion.
///
/// # Safety
/// The completion queue must be alive.
pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq) -> std::io::Result<()> {
    // SAFETY: caller's contract; every device has the function.
    let failed = unsafe {
        let notify = (*(*cq).context).ops.req_notify_cq.expect("every device has req_notify_cq");
        notify(cq, 0)
    };
    done(failed)
}

/// Converts the result of a verb that returns 0 or an error number.
pub(crate) fn done(failed: c_int) -> std::io::Result<()> {
    match failed {
        0 => Ok(()),
        // Some devices return it negated, some set errno.
        -1 => Err(std::io::Error::last_os_error()),
        number => Err(std::io::Error::from_raw_os_error(number.abs())),
    }
}
