//! Access to buffers of peers: in memory mapped here, in this process, or in another process if the system allows that.

use crate::blocks::Blocks;
use crate::cma::{self, CrossMemory};
use crate::control::Control;
use crate::memory::MemoryBlock;
use crate::{copy, exports};
use std::sync::Arc;
use transom_channel::wire::Key;
use transom_locks::Rank;
use transom_windows::FabricError;

/// Bits of a key's address that hold the address; programs use fewer on every processor. The bits above hold 1 plus the
/// descriptor by which the block there can be mapped, or 0.
const ADDRESS: u32 = 48;

/// A rank's access to buffers of its peers. It does not keep the rank in its job.
#[derive(Clone)]
pub(crate) struct Reach {
    pub rank: Rank,
    pub control: Arc<Control>,
    pub blocks: Arc<Blocks>,
    pub across_processes: bool,
}

/// The position of bytes.
pub(crate) enum Reached {
    /// Mapped here, or in this process.
    Here(*mut u8),
    /// In another process.
    There(CrossMemory),
}

impl Reach {
    /// A key by which other ranks read bytes of this process, until it is [withdrawn](withdraw).
    pub fn lead_to(&self, address: usize, len: usize) -> Key {
        // Threads access each other's memory directly.
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

    /// Returns whether this rank can read memory of `peer`: reads a word there that holds `expected`.
    pub fn try_out(&self, peer: Rank, probe: u64, expected: u64) -> bool {
        let pid = self.control.process(peer);
        if pid == self.control.process(self.rank) {
            return true;
        }
        let (Ok(pid), false) = (u32::try_from(pid), probe == 0) else { return false };
        let mut word = [0; 8];
        let read = CrossMemory { rank: peer, pid, start: probe, bytes: 8 }.read(0, &mut word);
        if let Err(error) = &read {
            tracing::debug!(peer, %error, "cannot read the memory of a peer; long messages are copied twice");
        }
        read.is_ok() && u64::from_le_bytes(word) == expected
    }

    /// Allows other processes of the job to read here, where the system requires permission.
    pub fn admit(&self) {
        if self.across_processes && self.control.ranks() > 1 {
            cma::admit();
        }
    }

    /// Reads `target`'s length in bytes from offset `at` of a peer's buffer; they have arrived on return.
    ///
    /// # Safety
    /// `target` is valid for writes of `length` bytes, which no other code uses meanwhile.
    pub unsafe fn read(
        &self,
        peer: Rank,
        (from, at): (Key, usize),
        (target, length): (*mut u8, usize),
    ) -> Result<(), FabricError> {
        // SAFETY: caller's contract.
        let target = unsafe { std::slice::from_raw_parts_mut(target, length) };
        self.reach(peer, (from, at), length, |place| match place {
            Reached::Here(source) => {
                // SAFETY: a peer does not change a buffer that it offers before it is withdrawn, and the memory is
                // shared.
                unsafe { copy::from_shared(source, target) }
                Ok(())
            }
            Reached::There(memory) => memory.read(0, target),
        })
    }

    /// Writes bytes to offset `at` of a reading peer's buffer; they have arrived on return.
    pub fn write(&self, peer: Rank, (to, at): (Key, usize), source: &[u8]) -> Result<(), FabricError> {
        self.reach(peer, (to, at), source.len(), |place| match place {
            Reached::Here(target) => {
                // SAFETY: no other code uses a buffer that a peer lets this rank write to before it is withdrawn, and
                // the memory is shared.
                unsafe { copy::to_shared(target, source) }
                Ok(())
            }
            Reached::There(memory) => memory.write(0, source),
        })
    }

    /// Calls `act` with the position of `length` bytes from offset `at` on of a peer's buffer, which stays valid
    /// meanwhile.
    pub fn reach<R>(
        &self,
        peer: Rank,
        (key, at): (Key, usize),
        length: usize,
        act: impl FnOnce(Reached) -> Result<R, FabricError>,
    ) -> Result<R, FabricError> {
        let bad_key = |why: &str| FabricError::BadKey { rank: peer, why: why.into(), source: None };
        let pid = self.control.process(peer);
        let address = key.address & ((1 << ADDRESS) - 1);
        let end = address.checked_add(at as u64).and_then(|start| start.checked_add(length as u64));
        end.filter(|end| *end <= 1 << ADDRESS).ok_or_else(|| bad_key("its buffer ends beyond the address space"))?;
        if let Some(memory) = self.mapped(pid, key) {
            let place = memory.of_owner(address + at as u64, length);
            return act(Reached::Here(place.ok_or_else(|| bad_key("its buffer is not within its block"))?));
        }
        if pid == self.control.process(self.rank) {
            let here = |address| act(Reached::Here(std::ptr::with_exposed_provenance_mut(address)));
            let none = || Err(bad_key("its buffer no longer exists"));
            return exports::with(key.key, at, length, here).unwrap_or_else(none);
        }
        let pid = u32::try_from(pid).map_err(|_| bad_key("it has no valid process number"))?;
        let memory = CrossMemory { rank: peer, pid, start: address + at as u64, bytes: length };
        self.control.reaching(peer, || act(Reached::There(memory)))
    }

    /// Returns whether a peer's buffer is mapped here, or can be.
    pub fn is_mapped(&self, peer: Rank, key: Key) -> bool {
        let pid = self.control.process(peer);
        pid == self.control.process(self.rank) || self.mapped(pid, key).is_some()
    }

    /// The block that contains the buffer of this key, if it is mapped here, or can be. `owner` is the number of the
    /// peer's process.
    fn mapped(&self, owner: u64, key: Key) -> Option<Arc<MemoryBlock>> {
        if !self.across_processes {
            return None;
        }
        let fd = (key.address >> ADDRESS).checked_sub(1);
        self.blocks.get(key.key).or_else(|| {
            let (pid, fd) = (u32::try_from(owner).ok()?, fd? as u32);
            let opened = MemoryBlock::open_of(pid, fd, None, key.key);
            let memory = opened.inspect_err(|(why, _)| tracing::debug!(why, "cannot map a buffer of a peer")).ok()?;
            Some(self.blocks.keep(owner, key.key, memory))
        })
    }
}

/// Withdraws a key: on return no code of this process can use it. Another process may go on reading, and gets the
/// current contents.
pub(crate) fn withdraw(key: Key) {
    exports::withdraw(key.key);
}

#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// The number of an ended process may belong to another process by now.
    #[test]
    fn ended_process_is_not_read_by_its_number() {
        let control = Control::create(Arc::new(MemoryBlock::heap(Control::bytes(2).unwrap(), 1).unwrap()), 2);
        control.enter(0).unwrap();
        let [mut peer, mut other] = [(); 2].map(|()| Command::new("sleep").arg("100").spawn().unwrap());
        control.enter_as(1, peer.id());
        control.watch(0).unwrap();
        // Accessed before, at a time when the check is due again.
        control.reaching(1, || Ok(())).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        peer.kill().unwrap();
        peer.wait().unwrap();
        control.enter_as(1, other.id());
        let reach = Reach { rank: 0, control: Arc::new(control), blocks: Arc::default(), across_processes: true };
        let mut target = [0_u8; 8];
        // SAFETY: a buffer of this function.
        let read = unsafe { reach.read(1, (Key { address: 4096, key: 5 }, 0), (target.as_mut_ptr(), 8)) };
        let written = reach.write(1, (Key { address: 4096, key: 5 }, 0), &target);
        for ended in [read, written] {
            assert!(matches!(ended, Err(FabricError::PeerDied { rank: 1 })), "{ended:?}");
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
