//! Memory that a rank attaches to an existing window, and detaches again.
//!
//! Each rank has slots in its part of the window. A slot holds the address of the memory attached there, or 0.
//! Addresses carry a number that their rank never reuses. A rank that uses an address reads the slot that it names, and
//! accesses the memory only if the slot holds exactly this address; otherwise the address is stale or forged, which is
//! an error. An access in flight while the memory is detached goes to memory that no rank reads any more.

use crate::address::{Address, Attached, Attachment, KEY};
use crate::core::Core;
use crate::{Error, Fabric, FabricError, Window};
use bytemuck::{Pod, Zeroable};
use transom_locks::Rank;

impl<F: Fabric> Attached<F> {
    /// Checks that `core`'s window still has this memory attached, at `rank`.
    pub(crate) fn check(&self, core: &Core<F>, rank: Rank) -> Result<(), Error> {
        if rank != self.address.rank() {
            return Err(core.not_here(&self.address));
        }
        core.still_attached(&self.address)
    }
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Attaches `len` zeroed elements at this rank, and returns an address by which other ranks reach them. Not
    /// collective. The window must have been made with slots, see [`Flavor::Dynamic`](crate::Flavor::Dynamic).
    ///
    /// # Errors
    /// [`Error::NoSlot`] if all slots are in use; [`Error::Size`]; [`Error::Fabric`] if no memory is available.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.dynamic::<u64>(4)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Error, Flavor, Window};
    /// let mut window = Window::<u64, _>::new(&fabric, 0, Flavor::Dynamic { slots: 4 }, 0)?;
    /// let address = window.attach(100)?; // send it to any rank
    ///
    /// let memory = window.reach(&address)?; // works at any rank
    /// window.lock_shared(address.rank())?.attached(&memory)?.put(99, &[7])?;
    /// assert_eq!(window.local().attached(&address)?.get(99)?, 7);
    ///
    /// window.detach(&address)?;
    /// let epoch = window.lock_shared(address.rank())?;
    /// assert!(matches!(epoch.attached(&memory), Err(Error::Detached { .. })));
    /// # drop(epoch);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attach(&mut self, len: usize) -> Result<Address, Error> {
        let core = &mut self.core;
        let (window, rank, element) = (core.id, core.data.fabric.rank(), size_of::<T>());
        let Some(slot) = core.attached.iter().position(Option::is_none) else {
            return Err(Error::NoSlot { window, rank, slots: core.attached.len() });
        };
        let bytes = len.checked_mul(element).filter(|&bytes| bytes <= isize::MAX as usize / 2);
        let bytes = bytes.ok_or(Error::Size { what: "window", window, len, element, why: "too many bytes" })?;
        let failed = |source| Error::Fabric { window, rank, source };
        // The region has whole words, for atomics.
        let (region, key) = core.data.fabric.allocate(bytes.next_multiple_of(8)).map_err(failed)?;
        core.numbers += 1;
        let (number, key_bytes) = (core.numbers, key.len() as u32);
        let (rank_there, slot_there, len_there) = (rank as u32, slot as u32, len as u64);
        let mut address =
            Address { rank: rank_there, slot: slot_there, number, len: len_there, window, key_bytes, key: [0; KEY] };
        let long = FabricError::Misuse { why: format!("a key of {} bytes does not fit an address", key.len()) };
        address.key.get_mut(..key.len()).ok_or(failed(long))?.copy_from_slice(&key);
        core.write_slot(&address)?;
        core.attached[slot] = Some(Attachment { region, address });
        tracing::debug!(window, rank, slot, number, len, "memory attached");
        Ok(address)
    }

    /// Ends an attachment made by [`attach`](Self::attach): from now on uses of the address fail.
    ///
    /// # Errors
    /// [`Error::NotHere`] if another rank attached it; [`Error::Detached`] if it was detached before.
    ///
    /// # Examples
    /// See [`attach`](Self::attach).
    pub fn detach(&mut self, address: &Address) -> Result<(), Error> {
        self.core.attached_here(address)?;
        let slot = address.slot as usize;
        self.core.write_slot(&Address { number: 0, ..*address })?;
        self.core.attached[slot] = None;
        tracing::debug!(window = self.core.id, slot, number = address.number, "memory detached");
        Ok(())
    }

    /// Makes attached memory reachable from this rank: on one machine by a mapping, over a network at no cost. Costs 1
    /// read.
    ///
    /// # Errors
    /// [`Error::Detached`] if the memory was detached; [`Error::NotHere`] if the address is not of this window;
    /// [`Error::Fabric`].
    ///
    /// # Examples
    /// See [`attach`](Self::attach).
    pub fn reach(&self, address: &Address) -> Result<Attached<F>, Error> {
        let (core, rank) = (&self.core, address.rank());
        core.still_attached(address)?;
        let bytes = address.len().checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize / 2);
        let key = address.key.get(..address.key_bytes as usize);
        let (bytes, key) = bytes.zip(key).ok_or_else(|| core.not_here(address))?;
        match core.data.fabric.attach(rank, key, bytes.next_multiple_of(8)) {
            Ok(remote) => Ok(Attached { remote, address: *address }),
            // The memory may have been detached in between.
            Err(source) => core.still_attached(address).and(Err(Error::Fabric { window: core.id, rank, source })),
        }
    }
}

impl<F: Fabric> Core<F> {
    /// Checks in the owner's slot that the memory of an address is still attached.
    fn still_attached(&self, address: &Address) -> Result<(), Error> {
        let (rank, slot) = (address.rank(), address.slot as usize);
        let remote = self.data.remotes.get(rank).ok_or_else(|| self.no_such_rank(rank))?;
        if slot >= self.data.sizes[rank].slots || address.window != self.id || address.number == 0 {
            return Err(self.not_here(address));
        }
        let mut there = Address::zeroed();
        let read = self.data.fabric.get(remote, self.data.slot_offset(rank, slot), bytemuck::bytes_of_mut(&mut there));
        read.map_err(|source| Error::Fabric { window: self.id, rank, source })?;
        match there {
            _ if there == *address => Ok(()),
            _ if there.number == address.number => Err(self.not_here(address)),
            _ => Err(Error::Detached { window: self.id, rank, slot }),
        }
    }

    /// The region of an address of this rank.
    pub(crate) fn attached_here(&self, address: &Address) -> Result<&F::Region, Error> {
        let (rank, slot) = (address.rank(), address.slot as usize);
        if rank != self.data.fabric.rank() || slot >= self.attached.len() || address.window != self.id {
            return Err(self.not_here(address));
        }
        match &self.attached[slot] {
            Some(held) if held.address == *address => Ok(&held.region),
            Some(held) if held.address.number == address.number => Err(self.not_here(address)),
            _ => Err(Error::Detached { window: self.id, rank, slot }),
        }
    }

    /// Writes an address to its slot, one of this rank's. Once this returns, other ranks find it there, however they
    /// learned of the address. A rank that reads the slot meanwhile gets a mixture of old and new, which equals
    /// neither.
    fn write_slot(&self, address: &Address) -> Result<(), Error> {
        let (data, rank) = (&self.data, self.data.fabric.rank());
        let (slot, at) = (data.slot_offset(rank, address.slot as usize), &data.remotes[rank]);
        let put = data.fabric.put(at, slot, bytemuck::bytes_of(address)).and_then(|()| data.fabric.flush(at));
        put.map_err(|source| Error::Fabric { window: self.id, rank, source })
    }

    /// Invalidates the addresses of all attachments when the window is dropped. Errors are ignored.
    pub(crate) fn forget_attached(&mut self) {
        for held in std::mem::take(&mut self.attached).into_iter().flatten() {
            let _ = self.write_slot(&Address { number: 0, ..held.address });
        }
    }

    #[cold]
    fn not_here(&self, address: &Address) -> Error {
        Error::NotHere { window: self.id, rank: address.rank(), slot: address.slot as usize }
    }
}
