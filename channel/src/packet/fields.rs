//! Sequential reader and writer of header fields, little-endian.

use super::{Envelope, Keys, LONGEST, Malformed};
use crate::slab::Id;
use crate::wire::{Key, RAILS};

/// Longest message in bytes: the 62 bits beside the mover.
pub(super) const MOST: u64 = (1 << 62) - 1;

pub(super) struct Writer<'a> {
    pub into: &'a mut [u8; LONGEST],
    pub at: usize,
}

impl Writer<'_> {
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        self.into[self.at..self.at + N].copy_from_slice(&bytes);
        self.at += N;
    }

    pub fn u32(&mut self, value: u32) {
        self.put(value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.put(value.to_le_bytes());
    }

    pub fn envelope(&mut self, envelope: &Envelope) {
        self.u32(envelope.context);
        self.u32(envelope.tag);
        self.u64(envelope.length);
    }

    pub fn keys(&mut self, keys: &Keys) {
        self.put([(0..RAILS).map(|rail| u8::from(keys[rail].is_some()) << rail).sum()]);
        for key in keys.iter().flatten() {
            self.u64(key.address);
            self.u64(key.key);
        }
    }
}

pub(super) struct Reader<'a> {
    pub from: &'a [u8],
    pub at: usize,
}

impl Reader<'_> {
    pub fn get<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let short = Malformed::Short { came: self.from.len(), needed: self.at + N };
        let bytes = self.from.get(self.at..self.at + N).ok_or(short)?;
        self.at += N;
        Ok(bytes.try_into().expect("the slice has N bytes"))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.get()?))
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.get()?))
    }

    pub fn length(&mut self) -> Result<u64, Malformed> {
        let value = self.u64()?;
        if value > MOST { Err(Malformed::Field { field: "length", value }) } else { Ok(value) }
    }

    pub fn id(&mut self) -> Result<Id, Malformed> {
        let value = self.u64()?;
        Id::from_wire(value).ok_or(Malformed::Field { field: "request", value })
    }

    pub fn envelope(&mut self) -> Result<Envelope, Malformed> {
        Ok(Envelope { context: self.u32()?, tag: self.u32()?, length: self.length()? })
    }

    pub fn keys(&mut self) -> Result<Keys, Malformed> {
        let [mask] = self.get()?;
        if mask >> RAILS != 0 {
            return Err(Malformed::Field { field: "rails", value: mask.into() });
        }
        let mut keys = [None; RAILS];
        for (rail, key) in keys.iter_mut().enumerate() {
            if mask >> rail & 1 == 1 {
                *key = Some(Key { address: self.u64()?, key: self.u64()? });
            }
        }
        Ok(keys)
    }
}
