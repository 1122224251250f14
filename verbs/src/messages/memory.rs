//! What is registered for messages.

use super::wire::VerbsWire;
use crate::sys::{Access, Registered};
use std::collections::BTreeMap;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::Meter;
use transom_channel::wire::{Key, RAILS};
use transom_shm_loopback::messages::Bytes;

/// Where memory begins, its length, whether it may be written.
type Whole = (u64, usize, bool);

/// A registration that messages use, all from one address on.
pub(super) struct Used {
    what: Arc<Registered>,
    writable: bool,
    /// It is of memory that outlives messages, and serves any that it covers. Others serve messages of their own length: a longer one's
    /// right to the rest may end before.
    lasts: bool,
    /// By how many.
    times: usize,
}

/// Those of a rail, by their key, at the address that they are used from. None is added for what one serves that is there: so of those
/// that serve a message the shortest is its own.
pub(super) type Table = BTreeMap<Key, Used>;

/// What is kept beside memory that messages are sent from again and again: its registrations, by the rails that have one.
#[derive(Clone, Default)]
struct Kept([Option<Arc<Registered>>; RAILS]);

/// None if it is not memory of this rank's.
fn whole(memory: &Bytes) -> Option<Whole> {
    let start = memory.start()?.as_ptr().expose_provenance() as u64;
    Some((start, memory.len(), memory.is_writable()))
}

impl VerbsWire {
    pub(super) fn make_known(&mut self, memory: &Bytes, rail: usize) -> Option<Key> {
        let (start, whole) = (memory.start()?, whole(memory)?);
        // Datagrams have the first adapter.
        let by = if self.is_of_datagrams(rail) { 0 } else { rail };
        let (address, bytes, writable) = whole;
        if let Some(key) = find(&self.registered[rail], whole).map(|(key, _)| key)
            && let Some(known) = self.registered[rail].get_mut(&key)
        {
            known.times += 1;
            self.counted.found_registered += 1;
            return Some(key);
        }
        // What windows and buffers have is registered with each rail.
        if !writable && let Some(registered) = self.service.core_of(by).memory.readable(address, bytes) {
            self.counted.found_registered += 1;
            return Some(self.use_from(rail, address, Used { what: registered, writable, lasts: true, times: 1 }));
        }
        if bytes < self.register_from {
            return None;
        }
        // What is written to is not kept: a peer could write there when the message is over, and the program has the buffer.
        let lasting = memory.lasting().filter(|lasting| !writable && self.cache.takes(lasting.len));
        let lasting = lasting.as_ref();
        let service = self.service.clone();
        let core = service.core_of(by);
        let memory = &core.memory;
        let kept = lasting.and_then(|lasting| self.cache.find::<Kept>(&lasting.place));
        let registered = if let Some(found) = kept.as_ref().and_then(|kept| kept.0[by].as_ref()) {
            memory.found();
            self.counted.found_registered += 1;
            found.clone()
        } else {
            let (start, bytes) = lasting.map_or((start, bytes), |lasting| (lasting.start, lasting.len));
            let access = if writable { Access::Bytes } else { Access::Read };
            // SAFETY: a buffer stays where it is, and is the engine's, until the registration was released; before it is given
            // back the engine releases that. What lasts stays until its place was cleared, and is only read: by peers also when
            // the program writes there, which is not what they were told to do, and gives them any bytes.
            let register = || unsafe { Registered::new(&core.rail.domain, start, bytes, access) };
            let registered = register().or_else(|error| match self.cache.let_go(0) {
                // The limit of locked memory may be all that is in the way.
                true => register(),
                false => Err(error),
            });
            let registered = Arc::new(registered.map_err(|error| memory.refused(error)).ok()?);
            memory.passed();
            self.counted.registered += 1;
            if let Some(lasting) = lasting {
                let mut kept = kept.as_deref().cloned().unwrap_or_default();
                kept.0[by] = Some(registered.clone());
                // Each adapter holds all of it.
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
            // A peer that has not heard of it may still write there, which would end the connection.
            self.core().receives.keep(ring);
        }
    }

    /// The memory of a key of this rank's: its length, whether it may be written, and its registration.
    pub(super) fn known(&self, rail: usize, of: Key) -> Option<(usize, bool, &Arc<Registered>)> {
        let used = self.registered[rail].get(&of)?;
        Some((used.bytes(of.address), used.writable, &used.what))
    }

    pub(super) fn known_key(&self, memory: &Bytes, rail: usize) -> Option<Key> {
        find(&self.registered[rail], whole(memory)?).map(|(key, _)| key)
    }

    /// The registration of a message's memory, and how far from where that begins it does.
    pub(super) fn moves_from(&self, memory: &Bytes, rail: usize) -> (&Arc<Registered>, usize) {
        let whole = whole(memory).expect("what moves is a buffer");
        let (_, used) = find(&self.registered[rail], whole).expect("what moves is registered");
        (&used.what, (whole.0 - used.what.address) as usize)
    }

    pub(super) fn known_memory(&self, rail: usize, of: Key, length: usize, written: bool) -> Option<Bytes> {
        let (bytes, writable, _) = self.known(rail, of)?;
        let start = NonNull::with_exposed_provenance(NonZero::new(of.address as usize)?);
        // SAFETY: memory of a message, which is the engine's until its registration ends; it was exposed when it was registered. Only
        // one is written to that is writable, and to receive in.
        (length <= bytes && writable >= written).then(|| unsafe { Bytes::lent(start, bytes, writable) })
    }

    pub(super) fn count_registered(&self, meter: &mut Meter) {
        // What stays may be in use as well.
        let used = self.registered.iter().flat_map(Table::values).map(|used| used.what.clone());
        let kept = self.cache.kept::<Kept>().flat_map(|kept| kept.0.clone()).flatten();
        let all: BTreeMap<_, _> = used.chain(kept).map(|what| (Arc::as_ptr(&what), what)).collect();
        meter.registered_bytes += all.values().map(|what| what.bytes() as u64).sum::<u64>();
        meter.registered += self.counted.registered;
        meter.found_registered += self.counted.found_registered;
    }
}

impl Used {
    /// From an address on.
    fn bytes(&self, address: u64) -> usize {
        self.what.bytes() - (address - self.what.address) as usize
    }
}

/// What a message from, or to, this memory uses.
fn find(table: &Table, (address, bytes, writable): Whole) -> Option<(Key, &Used)> {
    let of = |key| Key { address, key };
    let there = table.range(of(0)..=of(u64::MAX)).map(|(key, used)| (*key, used));
    let serves = |used: &Used| {
        let covered = used.bytes(address);
        used.writable == writable && (covered == bytes || used.lasts && covered > bytes)
    };
    there.filter(|(_, used)| serves(used)).min_by_key(|(_, used)| used.bytes(address))
}
