//! Memory owned by the library while the adapter may access it.

use super::registration_table::{Entry, RegistrationTable};
use crate::VerbsError;
use crate::sys::{Access, Domain, Registered};
use crate::wr::Piece;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_windows::BoxBytes;

/// Bytes and their registration, which is dropped first.
pub(crate) struct Pinned {
    /// Table entry by which the program's operations find it, if the program may have the bytes meanwhile.
    entry: Option<Entry<Registered>>,
    registered: Arc<Registered>,
    /// Registrations with further rails, each with its table entry.
    further: Vec<(Entry<Registered>, Arc<Registered>)>,
    bytes: BoxBytes,
}

impl Pinned {
    /// Registers the bytes; returns them with the error if that fails.
    pub fn new(domain: &Arc<Domain>, mut bytes: BoxBytes, access: Access) -> Result<Self, (VerbsError, BoxBytes)> {
        let (start, len) = (NonNull::from(&mut *bytes).cast(), bytes.len());
        // SAFETY: the bytes are owned here, stay in place, and are freed after the registration. The adapter accesses
        // them only by requests of this rank, which are posted while no other code has the bytes.
        match unsafe { Registered::new(domain, start, len, access) } {
            Ok(registered) => Ok(Pinned { entry: None, registered: Arc::new(registered), further: Vec::new(), bytes }),
            Err(error) => Err((error, bytes)),
        }
    }

    /// Enters the registration into a table.
    pub fn listed_in(self, table: &Arc<RegistrationTable<Registered>>) -> Self {
        let entry = table.add(self.registered.address, self.bytes.len() as u64, self.registered.clone());
        Pinned { entry: Some(entry), ..self }
    }

    /// Registers the bytes with a further rail and enters them into its table.
    pub fn also(
        &mut self,
        domain: &Arc<Domain>,
        table: &Arc<RegistrationTable<Registered>>,
        access: Access,
    ) -> Result<(), VerbsError> {
        let start = NonNull::from(&mut *self.bytes).cast();
        // SAFETY: as for the first rail.
        let registered = Arc::new(unsafe { Registered::new(domain, start, self.bytes.len(), access) }?);
        let entry = table.add(registered.address, self.bytes.len() as u64, registered.clone());
        self.further.push((entry, registered));
        Ok(())
    }

    /// The memory at `offset`, with the adapter's key.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        self.registered.piece(offset, bytes)
    }

    /// Copies bytes that the adapter has written.
    pub fn read(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.bytes[..into.len()]);
    }

    /// Hands the bytes to the program, which [returns](Self::put_back) them; they stay registered.
    pub fn take(&mut self) -> BoxBytes {
        std::mem::replace(&mut self.bytes, BoxBytes::from(Box::<[u8]>::default()))
    }

    pub fn put_back(&mut self, bytes: BoxBytes) {
        self.bytes = bytes;
    }

    /// Deregisters and returns the bytes.
    pub fn into_bytes(self) -> BoxBytes {
        let Pinned { entry, registered, further, bytes } = self;
        drop((entry, registered, further));
        bytes
    }
}
