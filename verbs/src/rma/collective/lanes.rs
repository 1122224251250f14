//! Collective steps over lanes. The sender writes the location of its bytes and then a word into a [place](Mail::place)
//! of the receiver; the receiver reads the bytes.

use super::{Said, Steps};
use crate::connect::Twin;
use crate::memory::Buffer;
use crate::rma::far::Far;
use crate::rma::mail::{BLOCK, DONE, Mail, Turn};
use crate::rma::member::Member;
use crate::sys::Access;
use crate::values::NotifyBy;
use crate::wait::{NAPS, is_oversubscribed};
use crate::wr::RemoteAddress;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};
use transom_launch::lock;
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

/// Smallest buffer for gathered bytes, and the largest one kept for the next collective.
const LEAST: usize = 4 << 10;
const KEPT: usize = 64 << 10;
/// Most bytes to gather; a larger announcement is refused.
const MOST: u64 = 1 << 32;
/// Time for data already sent by survivors to arrive after a rank has died.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// Waits until all ranks have called; returns whether any of them passed the flag. Collective.
pub(in crate::rma) fn barrier(mail: &Mail, member: &Arc<Member>, flag: bool) -> Result<bool, FabricError> {
    one(mail, member, "a barrier", |steps, me, ranks| super::barrier(steps, me, ranks, flag))
}

/// Gathers every rank's bytes at every rank. Collective.
pub(in crate::rma) fn all_gather(mail: &Mail, member: &Arc<Member>, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
    one(mail, member, "an all-gather over lanes", |steps, me, ranks| super::all_gather(steps, me, ranks, mine))
}

fn one<R>(
    mail: &Mail,
    member: &Arc<Member>,
    call: &'static str,
    run: impl FnOnce(&mut Collective<'_>, Rank, usize) -> Result<R, FabricError>,
) -> Result<R, FabricError> {
    let mut turn = lock(&mail.turn);
    if let Some(lost) = member.exchange.lost() {
        return Err(lost);
    }
    let Turn { number, bytes, twins } = &mut *turn;
    *number += 1;
    let bytes = &mut bytes[*number as usize % 2];
    // When buffers grew, the last one begins with the contents of the earlier ones.
    let last = bytes.pop().filter(|buffer| buffer.bytes() <= KEPT);
    *bytes = last.into_iter().collect();
    let (me, ranks) = (member.exchange.rank(), member.exchange.size());
    let mut steps = Collective { mail, member, call, number: *number, bytes, twins, written: 0 };
    let done = run(&mut steps, me, ranks)?;
    mail.block.word(DONE).store(*number, Release);
    Ok(done)
}

/// State of one collective.
struct Collective<'m> {
    mail: &'m Mail,
    member: &'m Arc<Member>,
    call: &'static str,
    number: u64,
    bytes: &'m mut Vec<Buffer>,
    twins: &'m mut HashMap<Rank, Twin>,
    /// Bytes at the start of the last buffer that are already offered to peers.
    written: usize,
}

impl Collective<'_> {
    /// Makes bytes available to peers; they begin with the bytes offered before.
    fn offer(&mut self, bytes: &[u8]) -> Result<Said, FabricError> {
        if bytes.is_empty() {
            return Ok(Said::default());
        }
        if self.bytes.last().is_none_or(|buffer| buffer.bytes() < bytes.len()) {
            let domain = &self.member.core().rail.domain;
            let size = bytes.len().next_power_of_two().max(LEAST);
            let larger = Buffer::new(domain, size, Access::Bytes).map_err(|source| FabricError::System {
                what: "registering a buffer for an all-gather".into(),
                source: std::io::Error::other(source),
            })?;
            let larger = larger.also(self.member.service.further_domains(), Access::Bytes);
            self.bytes.push(larger);
            self.written = 0;
        }
        let buffer = self.bytes.last().expect("created above");
        if self.written < bytes.len() {
            buffer.write(self.written, &bytes[self.written..]);
            self.written = bytes.len();
        }
        let names = buffer.keys();
        let keys = std::array::from_fn(|rail| names.place(rail).map_or(0, |place| place.key));
        Ok(Said { address: buffer.address(), bytes: bytes.len() as u64, keys })
    }

    /// Fails if a peer will send nothing more, because it died, failed, or left before this collective.
    fn can_go_on(&self, dying: &mut Option<Instant>) -> Result<(), FabricError> {
        self.member.unheard()?;
        match self.member.exchange.lost() {
            None => Ok(()),
            // The rank had completed this collective, so all ranks have begun it.
            Some(FabricError::PeerLeft { rank }) if self.has_done(rank) => Ok(()),
            Some(died @ FabricError::PeerDied { .. }) => {
                match dying.get_or_insert_with(Instant::now).elapsed() > AFTER_DEATH {
                    true => Err(died),
                    false => Ok(()),
                }
            }
            Some(lost) => Err(lost),
        }
    }

    /// Returns whether a rank that left had completed this collective. It keeps its memory until all ranks have left.
    fn has_done(&self, rank: Rank) -> bool {
        let RemoteAddress { address, key } = self.mail.blocks[rank];
        let mut done = [0; 8];
        let read = self
            .member
            .read(Far::of(self.member.way(rank), RemoteAddress { address: address + DONE as u64, key }), &mut done);
        read.is_ok() && u64::from_ne_bytes(done) >= self.number
    }
}

impl Steps for Collective<'_> {
    fn say(&mut self, step: usize, to: Rank, bytes: &[u8], flag: bool) -> Result<(), FabricError> {
        let said = self.offer(bytes)?;
        let (way, RemoteAddress { address, key }) = (self.member.way(to), self.mail.blocks[to]);
        let at = RemoteAddress { address: address + Mail::place(self.number, step) as u64, key };
        if let Some(further) = self.mail.further.get(to)
            && !self.twins.contains_key(&to)
        {
            let known = self.member.core().twins.know(way.peer, self.mail.blocks[to], BLOCK, further);
            self.twins.extend(known.map(|known| (to, known)));
        }
        if said.bytes > 0 {
            let place = [said.address, said.bytes].map(u64::to_ne_bytes);
            let place = [place.as_flattened(), said.keys.map(u32::to_ne_bytes).as_flattened()].concat();
            self.member.write(Far::of(way, RemoteAddress { address: at.address + 8, key }), &place)?;
        }
        // Posted after the location on the same lane.
        let word = self.number << 1 | u64::from(flag);
        match self.member.core().rail.writes.notify_by {
            NotifyBy::Atomic => {
                // The value that the last collective but one left here, if that had no flag.
                let guess = self.number.saturating_sub(2) << 1;
                self.member.swap(way, at, word, guess)
            }
            NotifyBy::Write => self.member.write(Far::of(way, at), &word.to_ne_bytes()),
        }
    }

    fn hear(&mut self, step: usize, from: Rank) -> Result<(bool, Said), FabricError> {
        let at = Mail::place(self.number, step);
        let look = || {
            self.member.progress();
            let word = self.mail.block.word(at).load(Acquire);
            Ok(Some(word).filter(|word| word >> 1 == self.number))
        };
        let (mut nap, mut dying) = (NAPS[0], None);
        let wait =
            Wait { rank: self.member.exchange.rank(), call: &self.call, awaited: Awaited::Rank(from), deadline: None };
        let oversubscribed = is_oversubscribed(self.member.node.ranks());
        let word = wait.until(
            oversubscribed,
            look,
            || self.can_go_on(&mut dying),
            |look| {
                self.member.nap(&mut nap);
                look()
            },
        )?;
        let number = |at: usize| self.mail.block.word(at).load(Acquire);
        let keys = std::array::from_fn(|rail| {
            let both = number(at + 24 + rail / 2 * 8).to_ne_bytes();
            u32::from_ne_bytes(both.as_chunks().0[rail % 2])
        });
        let said = Said { address: number(at + 8), bytes: number(at + 16), keys };
        Ok((word & 1 == 1, said))
    }

    fn fetch(&mut self, from: Rank, said: Said) -> Result<Vec<u8>, FabricError> {
        if said.bytes > MOST || said.address.checked_add(said.bytes).is_none() {
            return Err(super::not_understood(from));
        }
        let mut bytes = Vec::new();
        let room = bytes.try_reserve_exact(said.bytes as usize);
        room.map_err(|error| FabricError::System {
            what: format!("allocating {} bytes for an all-gather", said.bytes),
            source: std::io::Error::other(error),
        })?;
        bytes.resize(said.bytes as usize, 0);
        let [key, further @ ..] = said.keys;
        let (way, place) = (self.member.way(from), RemoteAddress { address: said.address, key });
        let several = 0..self.member.service.further_domains().count();
        let further = further.get(several).unwrap_or_default();
        // The translation lets the read fail over while the first rail is cut.
        let _twin = self.member.core().twins.know(way.peer, place, bytes.len(), further);
        let far = Far::of(way, place);
        self.member.read(far, &mut bytes)?;
        Ok(bytes)
    }
}
