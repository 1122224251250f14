//! Fingerprints of states, and a map from them.

use std::hash::{Hash, Hasher};

/// A fingerprint of 128 bits, and the number of bytes hashed.
pub(super) fn fingerprint(state: &impl Hash) -> (u128, usize) {
    let mut hasher = Fingerprint { sum: SEED, bytes: 0 };
    state.hash(&mut hasher);
    (mix(hasher.sum ^ hasher.bytes as u128).max(1), hasher.bytes)
}

const SEED: u128 = 0x2d35_8dcc_aa6c_78a5_8bb8_4b93_962e_acc9;
/// The multiplier of PCG's generator of 128 bits (O'Neill, 2014).
const FACTOR: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// A bijection of 128 bits. The multiplication carries each bit to those above, the shift brings the upper half down.
fn mix(sum: u128) -> u128 {
    let sum = sum.wrapping_mul(FACTOR);
    sum ^ sum >> 64
}

/// Hashes words one after the other. The same words at other widths give other fingerprints only by their values, so
/// it suits hashes of one type.
struct Fingerprint {
    sum: u128,
    bytes: usize,
}

impl Fingerprint {
    #[inline]
    fn word(&mut self, word: u64, bytes: usize) {
        self.sum = mix(self.sum ^ u128::from(word));
        self.bytes += bytes;
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word), chunk.len());
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.word(value.into(), 1);
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.word(value.into(), 4);
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.word(value, 8);
    }

    #[inline]
    fn write_usize(&mut self, value: usize) {
        self.word(value as u64, 8);
    }

    #[inline]
    fn write_isize(&mut self, value: isize) {
        self.word(value as u64, 8);
    }

    fn finish(&self) -> u64 {
        self.sum as u64
    }
}

/// A map from fingerprints, none of which is 0, to numbers: a table with open addressing, at most three quarters full.
#[derive(Default)]
pub(super) struct Fingerprints {
    table: Vec<u128>,
    numbers: Vec<u32>,
    len: usize,
}

impl Fingerprints {
    /// Adds a fingerprint with its number, if it is new. Returns the number of the fingerprint, and whether it is new.
    pub fn insert(&mut self, print: u128, number: u32) -> (u32, bool) {
        if self.len * 4 >= self.table.len() * 3 {
            let slots = (self.table.len() * 2).max(1024);
            let table = std::mem::replace(&mut self.table, vec![0; slots]);
            let numbers = std::mem::replace(&mut self.numbers, vec![0; slots]);
            for (print, number) in table.into_iter().zip(numbers).filter(|(print, _)| *print != 0) {
                let place = self.place(print);
                (self.table[place], self.numbers[place]) = (print, number);
            }
        }
        let place = self.place(print);
        let is_new = self.table[place] == 0;
        if is_new {
            (self.table[place], self.numbers[place]) = (print, number);
            self.len += 1;
        }
        (self.numbers[place], is_new)
    }

    pub fn bytes(&self) -> usize {
        self.table.capacity() * (size_of::<u128>() + size_of::<u32>())
    }

    /// The place of a fingerprint, or the free place where it belongs.
    fn place(&self, print: u128) -> usize {
        let mask = self.table.len() - 1;
        let mut place = print as usize & mask;
        while self.table[place] != 0 && self.table[place] != print {
            place = (place + 1) & mask;
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_holds_each_fingerprint_once() {
        let mut map = Fingerprints::default();
        let prints: Vec<u128> = (0..10_000u64).map(|value| fingerprint(&value).0).collect();
        for times in 0..2 {
            for (number, &print) in prints.iter().enumerate() {
                assert_eq!(map.insert(print, number as u32 + 50_000 * times), (number as u32, times == 0));
            }
        }
        assert_eq!(map.len, 10_000);
    }

    /// Each bit of each word changes about half of the bits, upper and lower.
    #[test]
    fn every_bit_changes_the_fingerprint() {
        let words = [5u64, 0, u64::MAX, 7];
        let (print, bytes) = fingerprint(&words);
        assert!(bytes >= 32);
        for (word, bit) in (0..4).flat_map(|word| (0..64).map(move |bit| (word, bit))) {
            let mut other = words;
            other[word] ^= 1 << bit;
            let changed = fingerprint(&other).0 ^ print;
            for half in [changed as u64, (changed >> 64) as u64] {
                assert!((8..=56).contains(&half.count_ones()), "word {word}, bit {bit}: {changed:#x}");
            }
        }
    }
}
