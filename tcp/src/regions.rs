//! The memory of this rank that peers reach: a table from numbers to memory.

use crate::frame::Refusal;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use transom_launch::lock;
use transom_shm_loopback::View;

/// The regions of a rank. Numbers are never used again, so the number of a region that was removed reaches no other.
#[derive(Default)]
pub struct Regions(Mutex<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<u64, Entry, foldhash::fast::RandomState>,
    last: u64,
}

struct Entry {
    view: View,
    /// Attachments of peers that have not ended.
    attached: u64,
    /// This rank no longer needs the region.
    is_over: bool,
}

/// Access of peers to memory. Dropping it ends the access, at once or once no peer is attached.
pub struct Region {
    number: u64,
    regions: Arc<Regions>,
}

impl Regions {
    /// Adds memory.
    pub fn add(self: &Arc<Self>, memory: &View) -> Region {
        let mut table = lock(&self.0);
        table.last += 1;
        let number = table.last;
        table.entries.insert(number, Entry { view: memory.clone(), attached: 0, is_over: false });
        Region { number, regions: self.clone() }
    }

    /// Calls `act` with the memory of a region, which stays until `act` has returned.
    pub fn with<R>(&self, number: u64, act: impl FnOnce(&View) -> Result<R, Refusal>) -> Result<R, Refusal> {
        act(&lock(&self.0).entries.get(&number).ok_or(Refusal::NoRegion)?.view)
    }

    /// Keeps a region that exists until a [`detach`](Self::detach).
    pub fn attach(&self, number: u64) -> Result<(), Refusal> {
        let mut table = lock(&self.0);
        let entry = table.entries.get_mut(&number).filter(|entry| !entry.is_over).ok_or(Refusal::NoRegion)?;
        entry.attached += 1;
        Ok(())
    }

    /// Ends an attachment.
    pub fn detach(&self, number: u64) {
        self.end(number, |entry| entry.attached = entry.attached.saturating_sub(1));
    }

    /// Changes a region, and removes a region that this rank has dropped and no peer is attached to.
    fn end(&self, number: u64, change: impl FnOnce(&mut Entry)) {
        let mut table = lock(&self.0);
        let Some(entry) = table.entries.get_mut(&number) else { return };
        change(entry);
        let removed = if entry.is_over && entry.attached == 0 { table.entries.remove(&number) } else { None };
        drop(table);
        drop(removed); // while nothing is locked: it may unmap memory
    }

    /// Number of regions.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        lock(&self.0).entries.len()
    }
}

impl Region {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ends the access at once, also that of peers that are attached.
    pub fn withdraw(self) {
        let removed = lock(&self.regions.0).entries.remove(&self.number);
        drop(removed); // while nothing is locked: it may unmap memory
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.regions.end(self.number, |entry| entry.is_over = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use transom_shm_loopback::Loopback;
    use transom_windows::Fabric;

    #[test]
    fn dropped_region_stays_until_all_have_detached() {
        let (memory, _) = Loopback::alone().unwrap().allocate(8).unwrap();
        let regions = Arc::<Regions>::default();
        let region = regions.add(memory.view());
        let number = region.number();
        let is_there = || regions.with(number, |_| Ok(())).is_ok();
        (0..2).for_each(|_| regions.attach(number).unwrap());
        drop(region);
        assert!(is_there() && regions.attach(number).is_err(), "no rank attaches to what is over");
        regions.detach(number);
        assert!(is_there());
        regions.detach(number);
        assert!(!is_there() && regions.len() == 0);
        regions.detach(number);
        assert_ne!(regions.add(memory.view()).number(), number);
    }
}
