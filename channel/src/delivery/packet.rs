//! Copy of a packet, kept until it is acknowledged.

use crate::wire::{Data, Part, Wire, WireMemory};

/// Copy of a packet, kept until it is acknowledged.
pub(super) struct Packet<M> {
    pub head: Box<[u8]>,
    body: Body<M>,
    /// Checksum of head and body, if checksums are enabled.
    pub checksum: Option<u32>,
    pub is_note: bool,
    /// Rail of the first transmission, if it is up.
    pub rail: usize,
}

enum Body<M> {
    Bytes(Box<[u8]>),
    Memory(M, usize),
}

impl<M: WireMemory> Packet<M> {
    /// Copies bytes that are borrowed for the call; `None` if memory is exhausted.
    pub fn new<W: Wire<Memory = M>>(
        wire: &mut W,
        rail: usize,
        head: &[u8],
        body: Data<'_, M>,
        scratch: &mut Vec<u8>,
        check: bool,
    ) -> Option<Packet<M>> {
        let checksum = check.then(|| {
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(head);
            match body {
                Data::None => {}
                Data::Bytes(bytes) => hasher.update(bytes),
                Data::Of(part) => {
                    scratch.resize(part.length, 0);
                    part.memory.read(part.at, scratch);
                    hasher.update(scratch);
                }
            }
            hasher.finalize()
        });
        let body = match body {
            Data::None => Body::Bytes(Box::default()),
            Data::Bytes(bytes) => Body::Bytes(bytes.into()),
            Data::Of(part) => {
                let memory = wire.take(part.length)?;
                part.copy(&memory, 0);
                Body::Memory(memory, part.length)
            }
        };
        Some(Packet { head: head.into(), body, checksum, is_note: false, rail })
    }

    pub fn into_note(self) -> Packet<M> {
        Packet { is_note: true, ..self }
    }

    /// Bytes after the head.
    pub fn body(&self) -> Data<'_, M> {
        match &self.body {
            Body::Bytes(bytes) => Data::Bytes(bytes),
            Body::Memory(memory, length) => Data::Of(Part { memory, at: 0, length: *length }),
        }
    }

    pub fn give<W: Wire<Memory = M>>(self, wire: &mut W) {
        if let Body::Memory(memory, _) = self.body {
            wire.give(memory);
        }
    }
}
