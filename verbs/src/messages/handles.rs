//! What the adapter writes to, as handles of the engine's.

use crate::datagram::Letter;
use crate::memory::Buffer;
use crate::receive::Filled;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_shm_loopback::messages::Owner;

/// A buffer with a message.
pub(super) struct Arrived(pub Filled);

// SAFETY: registered memory that stays where it is until it is given back, and that no adapter writes to before it is handed
// over again; only read.
unsafe impl Owner for Arrived {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start, self.0.bytes, false)
    }
}

/// A datagram.
pub(super) struct Opened(pub Letter);

// SAFETY: as of what has arrived by a connection.
unsafe impl Owner for Opened {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start, self.0.bytes, false)
    }
}

/// A ring for a peer.
pub(super) struct Ring(pub Arc<Buffer>);

// SAFETY: registered memory that stays where it is; only read. What is read of it was written by an adapter before its mark was
// seen; a peer that breaks the rules can change it meanwhile, and then what was copied out has any value, as is checked.
unsafe impl Owner for Ring {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (self.0.start(0), self.0.bytes(), false)
    }
}
