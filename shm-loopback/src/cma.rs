//! User memory of another process. It cannot be mapped, but the kernel copies between two processes (cross-memory
//! attach).

use crate::system;
use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;
use rustix::process::PTracer;
use std::io::{IoSlice, IoSliceMut};
use transom_locks::Rank;
use transom_windows::FabricError;

/// The position of such memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossMemory {
    pub rank: Rank,
    pub pid: u32,
    pub start: u64,
    pub bytes: usize,
}

/// The error of atomics on another process's memory, which the kernel does not provide.
pub(crate) const NO_ATOMICS: FabricError = FabricError::Unsupported {
    what: "no atomics on memory that the program lent to the window (create): the kernel only copies between processes",
};

/// Allows the ranks of this job to access this process's memory, where the system (Yama) requires permission. Ranks
/// need not have a common parent, so the permission is for all processes of this user, as it is without Yama.
pub(crate) fn admit() {
    // Without Yama there is nothing to allow; a rank that is refused after all returns the error.
    let _ = rustix::process::set_ptracer(PTracer::Any);
}

impl CrossMemory {
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.copy(offset, source.len(), |done, remote| {
            process_vm_writev(self.pid(), &[IoSlice::new(&source[done..])], &[remote])
        })
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.copy(offset, into.len(), |done, remote| {
            process_vm_readv(self.pid(), &mut [IoSliceMut::new(&mut into[done..])], &[remote])
        })
    }

    /// The error of a refused copy, with the remedy where this kernel or a sandbox never copies.
    #[cold]
    fn failed(&self, errno: Errno) -> FabricError {
        let CrossMemory { rank, pid, .. } = self;
        let refused = match errno {
            Errno::EPERM => "is not allowed",
            Errno::ENOSYS => "is not supported by this kernel or sandbox",
            _ => return system(format!("copying to or from process {pid}"), errno.into()),
        };
        let why = format!(
            "copying between processes {refused} for process {pid} (rank {rank}); see ptrace_scope in the manual of ptrace, \
             or allocate the window instead of lending it memory"
        );
        system(why, errno.into())
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.pid as i32)
    }

    /// Calls `part` for the remaining bytes until none remain: the kernel may stop early, at the end of a page.
    fn copy(
        &self,
        offset: usize,
        len: usize,
        mut part: impl FnMut(usize, RemoteIoVec) -> Result<usize, Errno>,
    ) -> Result<(), FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        let mut done = 0;
        while done < len {
            let base = self.start as usize + offset + done;
            match part(done, RemoteIoVec { base, len: len - done }) {
                Ok(0) | Err(Errno::EFAULT) => {
                    let why = format!("process {} has no memory at {base:#x}", self.pid);
                    return Err(FabricError::BadKey { rank: self.rank, why, source: None });
                }
                Ok(some) => done += some,
                Err(Errno::ESRCH) => return Err(FabricError::PeerDied { rank: self.rank }),
                Err(errno) => return Err(self.failed(errno)),
            }
        }
        Ok(())
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn refused_copy_error_advises_to_allocate_the_window() {
        let memory = CrossMemory { rank: 3, pid: 77, start: 0, bytes: 8 };
        for (errno, refused) in [(Errno::EPERM, "is not allowed"), (Errno::ENOSYS, "is not supported by this kernel")] {
            let error = memory.failed(errno).to_string();
            assert!(error.contains(refused), "{error}");
            assert!(error.contains("allocate the window instead of lending it memory"), "{error}");
        }
        let other = memory.failed(Errno::ENOMEM).to_string();
        assert!(!other.contains("allocate the window"), "{other}");
    }
}
