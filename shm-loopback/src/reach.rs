//! Reaching buffers of peers: in memory that is mapped here, in this process, or in another, if the system allows that.

use crate::blocks::Blocks;
use crate::cma::{self, CrossMemory};
use crate::control::Control;
use crate::memory::Memory;
use crate::{copy, exports};
use std::sync::Arc;
use transom_channel::wire::Key;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Bits of a key's address that are the address: more than programs have on any processor. Above them is the descriptor by
/// which the block there can be mapped, and 1, if it is one.
const ADDRESS: u32 = 48;

/// How a rank reaches buffers of its peers. It does not keep the rank in its job.
#[derive(Clone)]
pub(crate) struct Reach {
    pub rank: Rank,
    pub control: Arc<Control>,
    pub blocks: Arc<Blocks>,
    pub across_processes: bool,
}

/// Where bytes are.
pub(crate) enum Place {
    /// Mapped here, or of this process.
    Here(*mut u8),
    /// In another process.
    There(CrossMemory),
}

impl Reach {
    /// A key for bytes of this process, by which others read them, to be [withdrawn](withdraw).
    pub fn lead_to(&self, address: usize, len: usize) -> Key {
        // Threads reach each other's memory as it is.
        let block = if self.across_processes { self.blocks.containing(address, len) } else { None };
        match block {
            Some(found) => {
                let fd = found.fd.map_or(0, |fd| u64::from(fd) + 1);
                let fd = if fd < 1 << (64 - ADDRESS) { fd << ADDRESS } else { 0 };
                Key { address: fd | address as u64, key: found.tag }
            }
            None => Key { address: address as u64, key: exports::export(address, len) },
        }
    }

    /// Whether this rank can read at `peer`: tried on a word there that holds `expected`.
    pub fn try_out(&self, peer: Rank, probe: u64, expected: u64) -> bool {
        let pid = self.control.process(peer);
        if pid == self.control.process(self.rank) {
            return true;
        }
        let (Ok(pid), false) = (u32::try_from(pid), probe == 0) else { return false };
        let mut word = [0; 8];
        let read = CrossMemory { rank: peer, pid, start: probe, bytes: 8 }.read(0, &mut word);
        if let Err(error) = &read {
            tracing::debug!(peer, %error, "what is long is copied twice");
        }
        read.is_ok() && u64::from_le_bytes(word) == expected
    }

    /// Lets other processes of the job read here, where the system asks.
    pub fn admit(&self) {
        if self.across_processes && self.control.ranks() > 1 {
            cma::admit();
        }
    }

    /// Reads so many bytes from the place `at` of what a peer offers; they are there when it returns.
    ///
    /// # Safety
    /// `target` is valid for writes of as many bytes, which nobody else uses meanwhile.
    pub unsafe fn read(
        &self,
        peer: Rank,
        (from, at): (Key, usize),
        (target, length): (*mut u8, usize),
    ) -> Result<(), FabricError> {
        // SAFETY: by the caller's word.
        let target = unsafe { std::slice::from_raw_parts_mut(target, length) };
        self.reach(peer, (from, at), length, |place| match place {
            Place::Here(source) => {
                // SAFETY: what a peer offers it does not change before it is withdrawn; and it is memory that is shared.
                unsafe { copy::from_shared(source, target) }
                Ok(())
            }
            Place::There(memory) => memory.read(0, target),
        })
    }

    /// Writes so many bytes to the place `at` of what a peer, which reads, has a key for; they are there when it returns.
    pub fn write(&self, peer: Rank, (to, at): (Key, usize), source: &[u8]) -> Result<(), FabricError> {
        self.reach(peer, (to, at), source.len(), |place| match place {
            Place::Here(target) => {
                // SAFETY: nobody else uses what a peer lets this rank write to, before it is withdrawn; and it is memory that
                // is shared.
                unsafe { copy::to_shared(target, source) }
                Ok(())
            }
            Place::There(memory) => memory.write(0, source),
        })
    }

    /// Calls `act` with the place of so many bytes from `at` on of what a key of a peer leads to. It stays meanwhile.
    pub fn reach<R>(
        &self,
        peer: Rank,
        (key, at): (Key, usize),
        length: usize,
        act: impl FnOnce(Place) -> Result<R, FabricError>,
    ) -> Result<R, FabricError> {
        let bad_key = |why: &str| FabricError::BadKey { rank: peer, why: why.into(), source: None };
        let pid = self.control.process(peer);
        let address = key.address & ((1 << ADDRESS) - 1);
        let end = address.checked_add(at as u64).and_then(|start| start.checked_add(length as u64));
        end.filter(|end| *end <= 1 << ADDRESS).ok_or_else(|| bad_key("its buffer ends beyond all memory"))?;
        if let Some(memory) = self.mapped(pid, key) {
            let place = memory.of_owner(address + at as u64, length);
            return act(Place::Here(place.ok_or_else(|| bad_key("its buffer is not within its block"))?));
        }
        if pid == self.control.process(self.rank) {
            let here = |address| act(Place::Here(std::ptr::with_exposed_provenance_mut(address)));
            let none = || Err(bad_key("its buffer is there no longer"));
            return exports::with(key.key, at, length, here).unwrap_or_else(none);
        }
        let pid = u32::try_from(pid).map_err(|_| bad_key("it has no process"))?;
        let memory = CrossMemory { rank: peer, pid, start: address + at as u64, bytes: length };
        self.control.reaching(peer, || act(Place::There(memory)))
    }

    /// Whether what a key of a peer leads to is mapped here, or can be.
    pub fn is_mapped(&self, peer: Rank, key: Key) -> bool {
        let pid = self.control.process(peer);
        pid == self.control.process(self.rank) || self.mapped(pid, key).is_some()
    }

    /// The block that a key of a peer, whose process has this number, leads into, if it is mapped here, or can be.
    fn mapped(&self, owner: u64, key: Key) -> Option<Arc<Memory>> {
        if !self.across_processes {
            return None;
        }
        let fd = (key.address >> ADDRESS).checked_sub(1);
        self.blocks.get(key.key).or_else(|| {
            let (pid, fd) = (u32::try_from(owner).ok()?, fd? as u32);
            let opened = Memory::open_of(pid, fd, None, key.key);
            let memory = opened.inspect_err(|(why, _)| tracing::debug!(why, "cannot map a buffer of a peer")).ok()?;
            Some(self.blocks.keep(owner, key.key, memory))
        })
    }
}

/// When this returns nobody of this process can use the key. Another process may read on, and finds what is there.
pub(crate) fn withdraw(key: Key) {
    exports::withdraw(key.key);
}

#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// The number of a process that has ended may be another's by now.
    #[test]
    fn the_memory_of_a_process_that_has_ended_is_not_looked_for_by_its_number() {
        let control = Control::create(Arc::new(Memory::heap(Control::bytes(2).unwrap(), 1).unwrap()), 2);
        control.enter(0).unwrap();
        let [mut peer, mut other] = [(); 2].map(|()| Command::new("sleep").arg("100").spawn().unwrap());
        control.enter_as(1, peer.id());
        control.watch(0).unwrap();
        // Reached before, and a while before.
        control.reaching(1, || Ok(())).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        peer.kill().unwrap();
        peer.wait().unwrap();
        control.enter_as(1, other.id());
        let reach = Reach { rank: 0, control: Arc::new(control), blocks: Arc::default(), across_processes: true };
        let mut target = [0_u8; 8];
        // SAFETY: a buffer of this function's.
        let read = unsafe { reach.read(1, (Key { address: 4096, key: 5 }, 0), (target.as_mut_ptr(), 8)) };
        let written = reach.write(1, (Key { address: 4096, key: 5 }, 0), &target);
        for ended in [read, written] {
            assert!(matches!(ended, Err(FabricError::PeerDied { rank: 1 })), "{ended:?}");
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
