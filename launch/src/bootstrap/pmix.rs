//! PMIx, the protocol of `srun --mpi=pmix`, `prterun` and Open MPI's `mpirun`. The PMIx library is loaded on demand.

use super::error::BootstrapError;
use super::key_value::KeyValue;
use libloading::{Library, Symbol};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use transom_locks::Rank;

/// Set together in every process that a PMIx launcher starts.
pub(super) const VARIABLES: [&str; 2] = ["PMIX_RANK", "PMIX_NAMESPACE"];
const LIBRARIES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

type Status = c_int;
const SUCCESS: Status = 0;
const GLOBAL: u8 = 3;
const UINT32: u16 = 14;
const BYTES: u16 = 27;
const RANK_WILDCARD: u32 = u32::MAX - 1;

/// `pmix_proc_t`.
#[repr(C)]
struct Process {
    namespace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`, with a union as large as in any version of PMIx.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
union Data {
    number: u32,
    bytes: ByteObject,
    room: [u64; 8],
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ByteObject {
    start: *mut c_char,
    len: usize,
}

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> Status;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> Status;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> Status;
type Commit = unsafe extern "C" fn() -> Status;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> Status;
type Get = unsafe extern "C" fn(*const Process, *const c_char, *const c_void, usize, *mut *mut Value) -> Status;
type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;

unsafe extern "C" {
    fn free(memory: *mut c_void);
}

/// An initialised PMIx library; [`KeyValue::finish`] or dropping finalizes it.
pub(super) struct Pmix {
    library: &'static Library,
    me: Process,
    size: usize,
}

/// Loads the library by the first of its names that the dynamic loader finds.
pub(super) fn load() -> Result<Library, BootstrapError> {
    let mut last = None;
    for name in LIBRARIES {
        // SAFETY: this is PMIx's own library, found by the system's search path. Its constructors set up only the
        // library itself.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok(library),
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(BootstrapError::Library { source: last.expect("the list of names is not empty") })
}

impl Pmix {
    /// Initialises the library, which connects to the launcher.
    pub fn begin() -> Result<Self, BootstrapError> {
        // Leaked, never unloaded: the library has threads and handlers of its own.
        let library: &'static Library = Box::leak(Box::new(load()?));
        let me = Process { namespace: [0; 256], rank: 0 };
        let mut pmix = Pmix { library, me, size: 0 };
        let me = &raw mut pmix.me;
        // SAFETY: the signature is the library's; `me` is valid for the write.
        let status = unsafe { pmix.symbol::<Init>("PMIx_Init")?(me, null_mut(), 0) };
        if let Err(error) = pmix.check("PMIx_Init", status) {
            std::mem::forget(pmix); // not initialised, so it must not be finalized
            return Err(error);
        }
        let job = Process { namespace: pmix.me.namespace, rank: RANK_WILDCARD };
        let value = pmix.value(&job, "pmix.job.size")?;
        // SAFETY: the library allocated the value, and its kind selects the valid member.
        let size = unsafe { ((*value.0).kind == UINT32).then(|| (*value.0).data.number) };
        pmix.size = size.ok_or_else(|| failed("PMIx_Get", "pmix.job.size is not a 32-bit number".into()))? as usize;
        if pmix.rank() >= pmix.size {
            return Err(failed(
                "PMIx_Init",
                format!("rank {} is not below the job's size {}", pmix.me.rank, pmix.size),
            ));
        }
        Ok(pmix)
    }

    fn symbol<F>(&self, name: &'static str) -> Result<Symbol<'static, F>, BootstrapError> {
        // SAFETY: the types above are the PMIx standard's declarations of these names.
        unsafe { self.library.get(name) }.map_err(|source| BootstrapError::Library { source })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), BootstrapError> {
        if status == SUCCESS {
            return Ok(());
        }
        let named = self.symbol::<ErrorString>("PMIx_Error_string").map(|name| {
            // SAFETY: the function accepts any number, and returns null or a static C string.
            unsafe { name(status).as_ref().map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()) }
        });
        let named = named.ok().flatten().unwrap_or_default();
        Err(failed(call, format!("{named} ({status})")))
    }

    fn value(&self, of: &Process, key: &str) -> Result<Owned, BootstrapError> {
        let (key, mut value) = (text(key), null_mut());
        // SAFETY: the signature is the library's. Both strings end with 0, and the status says whether `value` is set.
        let status = unsafe { self.symbol::<Get>("PMIx_Get")?(of, key.as_ptr(), null(), 0, &raw mut value) };
        self.check("PMIx_Get", status)?;
        if value.is_null() {
            Err(failed("PMIx_Get", "the launcher returned no value".into()))
        } else {
            Ok(Owned(value))
        }
    }

    fn end(&self) -> Result<(), BootstrapError> {
        // SAFETY: the signature is the library's; called once per successful `PMIx_Init`.
        let status = unsafe { self.symbol::<Finalize>("PMIx_Finalize")?(null(), 0) };
        self.check("PMIx_Finalize", status)
    }
}

/// A value that the library allocated and the caller frees.
struct Owned(*mut Value);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the library allocated both by malloc, for the caller to free (`PMIX_VALUE_RELEASE`).
        unsafe {
            if (*self.0).kind == BYTES {
                free((*self.0).data.bytes.start.cast());
            }
            free(self.0.cast());
        }
    }
}

impl KeyValue for Pmix {
    fn rank(&self) -> Rank {
        self.me.rank as Rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        let key = text(key);
        let bytes = ByteObject { start: value.as_ptr().cast_mut().cast(), len: value.len() };
        let mut value = Value { kind: BYTES, data: Data { room: [0; 8] } };
        value.data.bytes = bytes;
        // SAFETY: the signature is the library's; it copies the bytes and does not write to them.
        let status = unsafe { self.symbol::<Put>("PMIx_Put")?(GLOBAL, key.as_ptr(), &raw mut value) };
        self.check("PMIx_Put", status)?;
        // SAFETY: the signature is the library's.
        let status = unsafe { self.symbol::<Commit>("PMIx_Commit")?() };
        self.check("PMIx_Commit", status)
    }

    fn fence(&mut self) -> Result<(), BootstrapError> {
        // SAFETY: the signature is the library's; an empty list of processes means the whole job.
        let status = unsafe { self.symbol::<Fence>("PMIx_Fence")?(null(), 0, null(), 0) };
        self.check("PMIx_Fence", status)
    }

    fn get(&mut self, rank: Rank, key: &str) -> Result<Vec<u8>, BootstrapError> {
        let of = Process { namespace: self.me.namespace, rank: rank as u32 };
        let value = self.value(&of, key)?;
        // SAFETY: the library allocated the value. Its kind selects the valid member, whose length is that of its
        // bytes.
        unsafe {
            let ByteObject { start, len } = match (*value.0).kind {
                BYTES => (*value.0).data.bytes,
                kind => return Err(failed("PMIx_Get", format!("{key} is of type {kind}, not bytes"))),
            };
            if start.is_null() || len == 0 {
                return Ok(Vec::new());
            }
            Ok(std::slice::from_raw_parts(start.cast::<u8>(), len).to_vec())
        }
    }

    fn finish(self: Box<Self>) -> Result<(), BootstrapError> {
        let ended = self.end();
        std::mem::forget(self);
        ended
    }
}

impl Drop for Pmix {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn text(key: &str) -> CString {
    CString::new(key).expect("keys contain no zero byte")
}

fn failed(call: &'static str, why: String) -> BootstrapError {
    BootstrapError::Pmix { call, why }
}
