//! Memory that is owned here while the adapter may reach it.

use super::known::{Entry, Known};
use crate::VerbsError;
use crate::sys::{Access, Domain, Registered};
use crate::wr::Piece;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_windows::BoxBytes;

/// Bytes and their registration, which goes first.
pub(crate) struct Pinned {
    /// By which operations of the program find it, if it may have the bytes meanwhile.
    known: Option<Entry<Registered>>,
    registered: Arc<Registered>,
    /// With further rails, likewise known.
    further: Vec<(Entry<Registered>, Arc<Registered>)>,
    bytes: BoxBytes,
}

impl Pinned {
    /// Registers them; gives them back if that is refused.
    pub fn new(domain: &Arc<Domain>, mut bytes: BoxBytes, access: Access) -> Result<Self, (VerbsError, BoxBytes)> {
        let (start, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: what is owned here stays where it is, and is freed after the registration. The adapter reaches it by requests of
        // this rank only; whoever posts them does so while nobody has the bytes.
        match unsafe { Registered::new(domain, start, len, access) } {
            Ok(registered) => Ok(Pinned { known: None, registered: Arc::new(registered), further: Vec::new(), bytes }),
            Err(error) => Err((error, bytes)),
        }
    }

    /// Has it known.
    pub fn known_by(self, known: &Arc<Known<Registered>>) -> Self {
        let entry = known.add(self.registered.address, self.bytes.len() as u64, self.registered.clone());
        Pinned { known: Some(entry), ..self }
    }

    /// Registers them with a further rail, whose operations find it.
    pub fn also(
        &mut self,
        domain: &Arc<Domain>,
        known: &Arc<Known<Registered>>,
        access: Access,
    ) -> Result<(), VerbsError> {
        let start = NonNull::from(&mut *self.bytes).cast();
        // SAFETY: as by the first.
        let registered = Arc::new(unsafe { Registered::new(domain, start, self.bytes.len(), access) }?);
        let entry = known.add(registered.address, self.bytes.len() as u64, registered.clone());
        self.further.push((entry, registered));
        Ok(())
    }

    /// As the adapter names them.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        self.registered.piece(offset, bytes)
    }

    /// Copies what the adapter brought.
    pub fn read(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[..into.len()]);
    }

    /// Hands the bytes to the program, which gives them [back](Self::put_back); they stay registered.
    pub fn take(&mut self) -> BoxBytes {
        std::mem::replace(&mut self.bytes, BoxBytes::from(Box::<[u8]>::default()))
    }

    pub fn put_back(&mut self, bytes: BoxBytes) {
        self.bytes = bytes;
    }

    /// The bytes, which are registered no more.
    pub fn into_bytes(self) -> BoxBytes {
        let Pinned { known, registered, further, bytes } = self;
        drop((known, registered, further));
        bytes
    }
}
