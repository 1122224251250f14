//! Memory that the adapter writes to, as handles of the engine.

use crate::datagram::Letter;
use crate::memory::Buffer;
use crate::receive::Filled;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_shm_loopback::messages::Owner;

/// A receive buffer with a message.
pub(super) struct Arrived(pub Filled);

// SAFETY: registered memory whose address is stable until it is returned, and which no adapter writes to before it is
// posted again; only read.
unsafe impl Owner for Arrived {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start, self.0.bytes, false)
    }
}

/// A received datagram.
pub(super) struct Opened(pub Letter);

// SAFETY: same as for a message received on a connection.
unsafe impl Owner for Opened {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start, self.0.bytes, false)
    }
}

/// A ring for a peer.
pub(super) struct Ring(pub Arc<Buffer>);

// SAFETY: registered memory with a stable address; only read. The bytes read were written by an adapter before their
// mark was seen. A faulty peer can change them meanwhile; the copied bytes then have any value, and are checked.
unsafe impl Owner for Ring {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start(0), self.0.bytes(), false)
    }
}
