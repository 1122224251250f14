//! Reading a peer's buffer: in this process, or in another, if the system allows that.

use super::bytes::{Bytes, Kind};
use super::exports;
use crate::cma::{self, CrossMemory};
use crate::loopback::Membership;
use transom_channel::wire::Key;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Lets others read a buffer by the key.
pub(super) fn offer(bytes: &Bytes) -> Option<Key> {
    let Kind::Here { start, len, .. } = &bytes.0 else { return None };
    let address = start.as_ptr().expose_provenance();
    Some(Key { address: address as u64, key: exports::export(address, *len) })
}

/// When this returns nobody of this process can use the key. Another process may read on, and finds what is there.
pub(super) fn withdraw(key: Key) {
    exports::withdraw(key.key);
}

/// Whether this rank can read at `peer`: tried on a word there that holds `expected`.
pub(super) fn try_out(job: &Membership, peer: Rank, probe: u64, expected: u64) -> bool {
    let pid = job.control.process(peer);
    if pid == u64::from(std::process::id()) {
        return true;
    }
    let (Ok(pid), false) = (u32::try_from(pid), probe == 0) else { return false };
    let mut word = [0; 8];
    let read = CrossMemory { rank: peer, pid, start: probe, bytes: 8 }.read(0, &mut word);
    if let Err(error) = &read {
        tracing::debug!(peer, %error, "large messages are copied twice");
    }
    read.is_ok() && u64::from_le_bytes(word) == expected
}

/// Lets other processes of the job read here, where the system asks.
pub(super) fn admit(job: &Membership) {
    if job.across_processes && job.control.ranks() > 1 {
        cma::admit();
    }
}

/// Reads so many bytes from the place `at` of what a peer offers; they are there when it returns.
///
/// # Safety
/// `target` is valid for writes of as many bytes, which nobody else uses meanwhile.
pub(super) unsafe fn read(
    job: &Membership,
    peer: Rank,
    (from, at): (Key, usize),
    (target, length): (*mut u8, usize),
) -> Result<(), FabricError> {
    let bad_key = |why: &str| FabricError::BadKey { rank: peer, why: why.into(), source: None };
    let pid = job.control.process(peer);
    if pid == u64::from(std::process::id()) {
        let read = |address: usize| {
            let source = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the source is within a buffer whose owner does not touch it before it is withdrawn; the target by the
            // caller's word.
            unsafe { std::ptr::copy(source, target, length) }
        };
        let there = exports::with(from.key, at, length, read);
        return if there { Ok(()) } else { Err(bad_key("its buffer is there no longer")) };
    }
    let pid = u32::try_from(pid).map_err(|_| bad_key("it has no process"))?;
    let end = from.address.checked_add(at as u64).and_then(|start| start.checked_add(length as u64));
    end.filter(|end| *end <= i64::MAX as u64).ok_or_else(|| bad_key("its buffer ends beyond all memory"))?;
    // SAFETY: by the caller's word.
    let target = unsafe { std::slice::from_raw_parts_mut(target, length) };
    CrossMemory { rank: peer, pid, start: from.address, bytes: at + length }.read(at, target)
}
