//! Registration of message memory.

use super::wire::VerbsWire;
use crate::sys::{Access, Registered};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::Counters;
use transom_channel::wire::{Key, RAILS};
use transom_shm_loopback::messages::Bytes;

/// Address, length in bytes, and whether the memory is written to.
type Whole = (u64, usize, bool);

/// A registration in use by messages, all of which start at the same address.
pub(super) struct Used {
    what: Arc<Registered>,
    writable: bool,
    /// The memory outlives messages, so the registration serves any message that it covers. Other registrations serve
    /// only messages of their own length: a longer one may lose the right to its remaining bytes earlier.
    lasts: bool,
    /// Number of messages that use it.
    times: usize,
}

/// Registrations of a rail in use, by key and by the address from which they are used. None is added if an existing one
/// serves the message, so the shortest that serves a message is its own.
pub(super) type Table = BTreeMap<Key, Used>;

/// Cached registrations of memory that is sent from repeatedly, by rail.
#[derive(Clone, Default)]
struct MessageRegistrations([Option<Arc<Registered>>; RAILS]);

/// `None` if the handle does not refer to a buffer of this rank.
fn whole(memory: &Bytes) -> Option<Whole> {
    let start = memory.start()?.as_ptr().expose_provenance() as u64;
    Some((start, memory.len(), memory.is_writable()))
}

impl VerbsWire {
    pub(super) fn make_known(&mut self, memory: &Bytes, rail: usize) -> Option<Key> {
        let (start, whole) = (memory.start()?, whole(memory)?);
        let by = self.port_of(rail);
        let (address, bytes, writable) = whole;
        if let Some(key) = find(&self.registered[rail], whole).map(|(key, _)| key)
            && let Some(known) = self.registered[rail].get_mut(&key)
        {
            known.times += 1;
            self.counted.found_registered += 1;
            return Some(key);
        }
        // Memory of windows and library buffers is registered with each rail.
        if !writable && let Some(registered) = self.service.core_of(by).memory.readable(address, bytes) {
            self.counted.found_registered += 1;
            return Some(self.use_from(rail, address, Used { what: registered, writable, lasts: true, times: 1 }));
        }
        if bytes < self.register_from {
            return None;
        }
        // Registrations for writing are not cached: a peer could write to the buffer after the message has completed,
        // when the program owns it.
        let lasting = memory.lasting().filter(|lasting| !writable && self.cache.takes(lasting.len));
        let lasting = lasting.as_ref();
        let service = self.service.clone();
        let core = service.core_of(by);
        let memory = &core.memory;
        let kept = lasting.and_then(|lasting| self.cache.find::<MessageRegistrations>(&lasting.place));
        let registered = if let Some(found) = kept.as_ref().and_then(|kept| kept.0[by].as_ref()) {
            memory.found();
            self.counted.found_registered += 1;
            found.clone()
        } else {
            let (start, bytes) = lasting.map_or((start, bytes), |lasting| (lasting.start, lasting.len));
            let access = if writable { Access::Bytes } else { Access::Read };
            // SAFETY: a buffer keeps its address and belongs to the engine until the registration is released, which
            // the engine does before it returns the buffer. Long-lived memory stays until its place was cleared, and is
            // only read. A peer that reads while the program writes there breaks the protocol, or was given up by
            // this rank; it gets arbitrary bytes.
            let register = || unsafe { Registered::new(&core.rail.domain, start, bytes, access) };
            let registered = register().or_else(|error| match self.cache.let_go(0) {
                // The limit of locked memory may be the only obstacle.
                true => register(),
                false => Err(error),
            });
            let registered = Arc::new(registered.map_err(|error| memory.refused(error)).ok()?);
            memory.passed();
            self.counted.registered += 1;
            if let Some(lasting) = lasting {
                let mut kept = kept.as_deref().cloned().unwrap_or_default();
                kept.0[by] = Some(registered.clone());
                // Each adapter holds all bytes.
                let bytes = bytes * kept.0.iter().flatten().count();
                if self.cache.takes(bytes) {
                    self.cache.keep(&lasting.place, bytes, &Arc::new(kept));
                }
            }
            registered
        };
        Some(self.use_from(rail, address, Used { what: registered, writable, lasts: lasting.is_some(), times: 1 }))
    }

    fn use_from(&mut self, rail: usize, address: u64, used: Used) -> Key {
        let key = Key { address, key: used.what.remote_key().into() };
        self.registered[rail].insert(key, used);
        key
    }

    pub(super) fn forget(&mut self, rail: usize, released: Key) {
        if let Some(used) = self.registered[rail].get_mut(&released) {
            used.times -= 1;
            if used.times == 0 {
                self.registered[rail].remove(&released);
            }
        } else if let Some((peer, ring)) = self.rings.remove(&released)
            && self.peers.get(&peer).is_some_and(|peer| peer.over)
        {
            // A peer that does not know of the loss may still write there, which would break the connection.
            self.core().receives.keep(ring);
        }
    }

    /// The memory of one of this rank's keys: length, whether it may be written, and registration.
    pub(super) fn known(&self, rail: usize, of: Key) -> Option<(usize, bool, &Arc<Registered>)> {
        let used = self.registered[rail].get(&of)?;
        Some((used.bytes(of.address), used.writable, &used.what))
    }

    pub(super) fn known_key(&self, memory: &Bytes, rail: usize) -> Option<Key> {
        find(&self.registered[rail], whole(memory)?).map(|(key, _)| key)
    }

    /// The registration of a message's memory, and the offset of the memory in it.
    pub(super) fn moves_from(&self, memory: &Bytes, rail: usize) -> (&Arc<Registered>, usize) {
        let whole = whole(memory).expect("a transfer has a buffer");
        let (_, used) = find(&self.registered[rail], whole).expect("the buffer of a transfer is registered");
        (&used.what, (whole.0 - used.what.address) as usize)
    }

    pub(super) fn known_memory(&self, rail: usize, of: Key, length: usize, written: bool) -> Option<Bytes> {
        let (bytes, writable, _) = self.known(rail, of)?;
        let start = NonNull::with_exposed_provenance(NonZero::new(of.address as usize)?);
        // SAFETY: memory of a message, which belongs to the engine until its registration ends; its provenance was
        // exposed at registration. Only writable receive memory is written to.
        (length <= bytes && writable >= written).then(|| unsafe { Bytes::lent(start, bytes, writable) })
    }

    pub(super) fn count_registered(&self, counters: &mut Counters) {
        // Cached registrations may also be in use.
        let used = self.registered.iter().flat_map(Table::values).map(|used| used.what.clone());
        let kept = self.cache.kept::<MessageRegistrations>().flat_map(|kept| kept.0.clone()).flatten();
        let all: BTreeMap<_, _> = used.chain(kept).map(|what| (Arc::as_ptr(&what), what)).collect();
        counters.registered_bytes += all.values().map(|what| what.bytes() as u64).sum::<u64>();
        counters.registered += self.counted.registered;
        counters.found_registered += self.counted.found_registered;
    }
}

impl Used {
    /// Registered bytes from `address` on.
    fn bytes(&self, address: u64) -> usize {
        self.what.bytes() - (address - self.what.address) as usize
    }
}

/// The registration that serves a message from or to this memory.
fn find(table: &Table, (address, bytes, writable): Whole) -> Option<(Key, &Used)> {
    let of = |key| Key { address, key };
    let there = table.range(of(0)..=of(u64::MAX)).map(|(key, used)| (*key, used));
    let serves = |used: &Used| {
        let covered = used.bytes(address);
        used.writable == writable && (covered == bytes || used.lasts && covered > bytes)
    };
    there.filter(|(_, used)| serves(used)).min_by_key(|(_, used)| used.bytes(address))
}
