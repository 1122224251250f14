//! Writes by datagrams, each piece into place without a copy: UD-ZCopy of MVAPICH-Aptus, by windows of 64
//! pieces.
//!
//! The writer announces the write ([`Note::Want`]). The target opens a [window](Wire::open_window) or two for
//! the next pieces, and grants them. The writer sends these pieces once, and reports when they were sent. The
//! target then closes the window, and grants missing pieces again through a new window that accepts only
//! those: a late piece of an earlier window finds no receive there. Pieces missing after two windows, and a
//! short last piece, travel in packets. Packets are reliable, so each write completes whatever is lost.
//!
//! The source memory belongs to the program again when all pieces have arrived and all posted datagrams were
//! sent.

use super::HEADER;
use super::note::{COPY, Note};
use super::packet::Packet;
use super::wire::{Delivery, KEPT};
use crate::wire::{Busy, Data, Event, Key, Lane, Part, RAILS, RailKind, Rank, Request, Window, Wire};
use std::collections::{BTreeMap, VecDeque};

/// Most writes in flight in each direction of a pair of ranks.
const UNDER_WAY: usize = 64;
/// Most open windows of a write: pieces arrive through one while the other is requested.
const OPEN: usize = 2;
/// Most windows open for one peer on a rail: the peer may be stopped, and other peers need windows.
const EACH: usize = 4;
/// Most unfinished grants of a write: one for each open window, and one for the last piece.
const GRANTS: u32 = OPEN as u32 + 1;
/// Most windows opened for the same pieces.
const ROUNDS: u8 = 2;
/// Number of packets kept for a peer at which copies wait, so that other packets are not blocked.
const COPIES: usize = KEPT / 2;
/// Number of packets kept for a peer at which its messages are ignored, since it takes no answers. A correct
/// peer causes a few messages for each write beside [`KEPT`], fewer than this.
const MOST: usize = KEPT + 16 * UNDER_WAY;
/// Number of pieces in a window.
const PIECES: u64 = 64;
/// Number of lost pieces that show a rail to be silent if no piece has come since.
const SILENT_FROM: u8 = 8;
/// Time in ns after which a silent rail is used again. It doubles each time that the rail is still silent, up to
/// [`DOUBLINGS`] times.
const SILENT: u64 = 1_000_000_000;
const DOUBLINGS: u8 = 4;

/// Writes between this rank and one peer, in both directions.
pub(super) struct Writes<M> {
    next: u32,
    going: BTreeMap<u32, Going<M>>,
    /// Grants of the peer, by rail, served in order: a rail that accepts no pieces holds up no other.
    jobs: BTreeMap<usize, VecDeque<Job>>,
    coming: BTreeMap<u32, Coming>,
    /// For each rail that is reported to the engine as cut although it is up: the time in ns at which it is used again.
    pub silent: [Option<u64>; RAILS],
    /// For each rail: number of times that it was reported as cut although it is up, since a piece has come.
    in_vain: [u8; RAILS],
    /// For each rail: number of lost pieces since a piece has come, or since the rail was last reported as cut.
    lost: [u8; RAILS],
}

struct Going<M> {
    rail: usize,
    token: u64,
    memory: M,
    at: usize,
    length: u64,
    /// Number of unfinished grants.
    left: u32,
}

struct Job {
    transfer: u32,
    window: u32,
    /// Mask of pieces not posted yet.
    wanted: u64,
    piece: u32,
    to: Option<Key>,
}

struct Coming {
    rail: usize,
    into: Key,
    at: u64,
    length: u64,
    /// First window that was not granted.
    next: u32,
    open: Vec<Open>,
}

/// A window with missing pieces.
struct Open {
    window: u32,
    missing: u64,
    rounds: u8,
    /// Key of the open window and the mask of pieces that it accepts; `None` while no window is open.
    by: Option<(Key, u64)>,
}

/// A time during which a rail accepts no piece, and completes none, of any peer.
#[derive(Clone, Copy, Default)]
pub(super) struct Refusal {
    /// First and last attempt in ns.
    attempts: Option<(u64, u64)>,
}

/// Time in ns after which the next attempt is the first one again: the program made no progress meanwhile.
const PAUSE: u64 = 1_000_000_000;

impl Refusal {
    fn again(&mut self, now: u64) {
        let (first, last) = self.attempts.unwrap_or((now, now));
        self.attempts = Some((if now - last > PAUSE { now } else { first }, now));
    }

    /// Time in ns between the first and the last attempt.
    pub fn lasts(&self) -> u64 {
        self.attempts.map_or(0, |(first, last)| last - first)
    }
}

/// This rank's open windows, and the pieces posted to windows of peers.
#[derive(Default)]
pub(super) struct Windows {
    /// Grants that wait until a window is closed: peer, transfer and window.
    waiting: VecDeque<(Rank, u32, u32)>,
    /// Tokens of the last piece of each grant: peer, transfer and window.
    posted: BTreeMap<u64, (Rank, u32, u32)>,
    tokens: u64,
    /// Number of windows that this rank has open.
    open: u64,
    pub refusals: [Refusal; RAILS],
}

/// Tokens of pieces have this bit and not the one above it, unlike tokens of requests and pipes.
const TOKEN: u64 = 1 << 30;

/// Returns true if a token belongs to pieces.
pub(super) fn is_token(token: u64) -> bool {
    token >> 30 & 3 == 1
}

impl<M> Default for Writes<M> {
    fn default() -> Writes<M> {
        Writes {
            next: 0,
            going: BTreeMap::new(),
            jobs: BTreeMap::new(),
            coming: BTreeMap::new(),
            silent: [None; RAILS],
            in_vain: [0; RAILS],
            lost: [0; RAILS],
        }
    }
}

impl<M> Writes<M> {
    /// Forgets the losses of a rail that is up again.
    pub fn begin_again(&mut self, rail: usize) {
        (self.silent[rail], self.lost[rail]) = (None, 0);
    }

    /// Rails on which the next piece waits until the wire accepts it.
    pub fn waits_for(&self) -> impl Iterator<Item = usize> + '_ {
        let waits = |jobs: &VecDeque<Job>| jobs.front().is_some_and(|job| job.to.is_some());
        self.jobs.iter().filter(move |(_, jobs)| waits(jobs)).map(|(rail, _)| *rail)
    }

    /// Returns true if a request can be posted while `kept` packets are kept.
    pub fn has_work(&self, kept: usize) -> bool {
        self.jobs.values().filter_map(VecDeque::front).any(|job| job.to.is_some() || kept < COPIES)
    }
}

/// Masks of the whole pieces of a window, and of the last piece if it is short.
fn pieces(length: u64, piece: u64, window: u32) -> (u64, u64) {
    let left = length - u64::from(window) * PIECES * piece;
    match left / piece {
        PIECES.. => (u64::MAX, 0),
        whole => ((1 << whole) - 1, if left.is_multiple_of(piece) { 0 } else { 1 << whole }),
    }
}

/// Length of a piece in bytes, for datagrams of at most `longest` bytes. A piece fits in a packet as well.
pub(super) fn piece(longest: usize) -> usize {
    (longest - HEADER - COPY) & !63
}

impl<W: Wire> Delivery<W> {
    fn writes(&mut self, peer: Rank) -> &mut Writes<W::Memory> {
        &mut self.link(peer).writes
    }

    fn coming(&mut self, peer: Rank, transfer: u32) -> Option<&mut Coming> {
        self.links.get_mut(&peer)?.writes.coming.get_mut(&transfer)
    }

    /// Longest datagram of a rail whose data fit into a packet of any other.
    fn longest(&self, rail: usize) -> usize {
        self.rails[rail].longest + HEADER
    }

    /// Starts a write.
    pub(super) fn write(
        &mut self,
        lane: Lane,
        from: Part<'_, W::Memory>,
        (into, at): (Key, usize),
        token: u64,
    ) -> Result<(), Busy> {
        let Lane { peer, rail } = lane;
        let key = self.wire.key_of(from.memory, rail).expect("the source is registered with this rail");
        let memory =
            self.wire.memory_of(rail, key, from.at + from.length, false).expect("the registration covers the source");
        let writes = self.writes(peer);
        if writes.going.len() >= UNDER_WAY {
            return Err(Busy);
        }
        let (transfer, length) = (writes.next, from.length as u64);
        writes.next = transfer.wrapping_add(1);
        writes.going.insert(transfer, Going { rail, token, memory, at: from.at, length, left: 0 });
        self.note(lane, Note::Want { transfer, rail: rail as u8, into, at: at as u64, length });
        Ok(())
    }

    /// Sends a message about a write by the rail of the write, behind its pieces.
    fn note(&mut self, Lane { peer, rail }: Lane, note: Note) {
        let packet = Packet::new(&mut self.wire, rail, &note.encode(), Data::None, &mut self.scratch, false);
        let packet = packet.expect("a packet without data needs no memory of the wire");
        self.link(peer).outgoing.push(packet.into_note());
        self.flush(peer, false);
        self.attend(peer);
    }

    /// Handles a message from the peer, and the bytes after it. `None` if the message is invalid.
    pub(super) fn hear(&mut self, peer: Rank, note: Note, behind: Part<'_, W::Memory>) -> Option<()> {
        self.links.get(&peer).filter(|link| link.outgoing.kept() < MOST)?;
        match note {
            Note::Want { transfer, rail, into, at, length } => {
                let rail = usize::from(rail);
                self.rails.get(rail).filter(|rail| rail.write)?;
                if !self.is_datagrams(Lane { peer, rail }) {
                    return None;
                }
                self.wire.memory_of(rail, into, usize::try_from(at.checked_add(length)?).ok()?, true)?;
                u32::try_from(length / (PIECES * piece(self.longest(rail)) as u64) + 1).ok()?;
                let coming = &mut self.writes(peer).coming;
                if coming.contains_key(&transfer) || coming.len() >= UNDER_WAY {
                    return None;
                }
                coming.insert(transfer, Coming { rail, into, at, length, next: 0, open: Vec::new() });
                self.ask(peer, transfer);
            }
            Note::Grant { transfer, window, wanted, piece, to } => {
                let longest = self.longest(self.links.get(&peer)?.writes.going.get(&transfer)?.rail);
                let writes = self.writes(peer);
                let going = writes.going.get_mut(&transfer)?;
                let piece_bytes = u64::from(piece);
                let last = 63_u64.checked_sub(wanted.leading_zeros().into())?;
                let before = (u64::from(window) * PIECES + last).checked_mul(piece_bytes)?;
                // A window accepts whole pieces only.
                let end = before.checked_add(if to.is_some() { piece_bytes } else { 1 })?;
                let is_short = (1..=longest - HEADER - COPY).contains(&(piece as usize));
                if !is_short || end > going.length || going.left >= GRANTS {
                    return None;
                }
                going.left += 1;
                let rail = going.rail;
                writes.jobs.entry(rail).or_default().push_back(Job { transfer, window, wanted, piece, to });
                self.go_on(peer);
                self.attend(peer);
            }
            Note::Sent { transfer, window, is_cut } => {
                let coming = self.coming(peer, transfer)?;
                let rail = coming.rail;
                let open = coming.open.iter_mut().find(|open| open.window == window)?;
                let (key, wanted) = open.by.take()?;
                let came = self.wire.close_window(rail, key) & wanted;
                self.windows.open -= 1;
                let coming = self.coming(peer, transfer)?;
                let open = coming.open.iter_mut().find(|open| open.window == window)?;
                open.missing &= !came;
                open.rounds += 1;
                let again = wanted & !came;
                let writes = self.writes(peer);
                if came != 0 {
                    (writes.in_vain[rail], writes.lost[rail]) = (0, 0);
                } else if !is_cut {
                    writes.lost[rail] = writes.lost[rail].saturating_add(wanted.count_ones() as u8);
                    self.leave_silent_rail(Lane { peer, rail });
                }
                if again != 0 {
                    self.grant(peer, transfer, window, again);
                }
                self.came(peer, transfer);
                self.serve();
            }
            Note::Copy { transfer, window, index } => {
                let Coming { rail, into, at, length, .. } = *self.coming(peer, transfer)?;
                let piece = piece(self.longest(rail)) as u64;
                let open = self.coming(peer, transfer)?.open.iter_mut().find(|open| open.window == window)?;
                let by_datagram = open.by.map_or(0, |(_, wanted)| wanted);
                if (open.missing & !by_datagram) >> index & 1 == 0 {
                    return None;
                }
                let begins = (u64::from(window) * PIECES + u64::from(index)) * piece;
                if behind.length as u64 != (length - begins).min(piece) {
                    return None;
                }
                open.missing &= !(1 << index);
                let memory = self.wire.memory_of(rail, into, (at + length) as usize, true)?;
                behind.copy(&memory, (at + begins) as usize);
                self.came(peer, transfer);
            }
            Note::Over { transfer } => {
                let writes = self.writes(peer);
                // All granted datagrams were sent: the adapter no longer owns the memory.
                let going = writes.going.get(&transfer).filter(|going| going.left == 0)?;
                let token = going.token;
                writes.going.remove(&transfer);
                self.events.push_back(Event::Done(token, self.wire.now()));
            }
        }
        Some(())
    }

    /// Removes complete windows of a write, and grants further ones.
    fn came(&mut self, peer: Rank, transfer: u32) {
        if let Some(coming) = self.coming(peer, transfer) {
            coming.open.retain(|open| open.missing != 0);
            self.ask(peer, transfer);
        }
    }

    /// Grants the next pieces of a write, as many as may be in flight. Reports completion once all have
    /// arrived.
    fn ask(&mut self, peer: Rank, transfer: u32) {
        loop {
            let Some(rail) = self.coming(peer, transfer).map(|coming| coming.rail) else { return };
            let piece = piece(self.longest(rail)) as u64;
            let Some(coming) = self.coming(peer, transfer) else { return };
            let windows = coming.length.div_ceil(PIECES * piece) as u32;
            if coming.next == windows && coming.open.is_empty() {
                self.writes(peer).coming.remove(&transfer);
                return self.note(Lane { peer, rail }, Note::Over { transfer });
            }
            if coming.next == windows || coming.open.len() == OPEN {
                return;
            }
            let window = coming.next;
            coming.next += 1;
            let (whole, short) = pieces(coming.length, piece, window);
            coming.open.push(Open { window, missing: whole | short, rounds: 0, by: None });
            if short != 0 {
                self.grant_copies(peer, transfer, window, short);
            }
            if whole != 0 {
                self.grant(peer, transfer, window, whole);
            }
        }
    }

    /// Grants pieces of a window as datagrams: at once, or when a window is free. After enough rounds, or on a rail that
    /// is cut, it grants them as copies.
    fn grant(&mut self, peer: Rank, transfer: u32, window: u32, wanted: u64) {
        let Some(&mut Coming { rail, into, at, ref mut open, .. }) = self.coming(peer, transfer) else { return };
        let Some(rounds) = open.iter().find(|open| open.window == window).map(|open| open.rounds) else { return };
        let link = &self.links[&peer];
        if rounds >= ROUNDS || !link.up[rail] || link.writes.silent[rail].is_some() {
            return self.grant_copies(peer, transfer, window, wanted);
        }
        let piece = piece(self.longest(rail));
        let begins = at as usize + window as usize * PIECES as usize * piece;
        let (has, window_of) = (self.opened_for(Lane { peer, rail }), Window { into, at: begins, piece, wanted });
        let opened = (has < EACH).then(|| self.wire.open_window(Lane { peer, rail }, window_of)).flatten();
        match opened {
            Some(key) => {
                self.windows.open += 1;
                self.counted.datagram_windows += 1;
                self.counted.datagram_windows_peak = self.counted.datagram_windows_peak.max(self.windows.open);
                let coming = self.coming(peer, transfer).expect("looked up above");
                coming
                    .open
                    .iter_mut()
                    .filter(|open| open.window == window)
                    .for_each(|open| open.by = Some((key, wanted)));
                let note = Note::Grant { transfer, window, wanted, piece: piece as u32, to: Some(key) };
                self.note(Lane { peer, rail }, note);
            }
            // The peer's own windows close as its writes proceed; windows of other peers may stay open if
            // those peers are stopped.
            None if has > 0 => self.windows.waiting.push_back((peer, transfer, window)),
            None => self.grant_copies(peer, transfer, window, wanted),
        }
    }

    /// Reports a rail that has lost enough pieces in a row as cut, if another rail works: the engine plans no writes there
    /// for a while.
    fn leave_silent_rail(&mut self, lane: Lane) {
        let now = self.wire.now();
        let link = self.link(lane.peer);
        let is_silent = link.writes.lost[lane.rail] >= SILENT_FROM;
        if is_silent && link.works(lane.rail) && (0..RAILS).any(|rail| rail != lane.rail && link.works(rail)) {
            let in_vain = &mut link.writes.in_vain[lane.rail];
            link.writes.silent[lane.rail] = Some(now + (SILENT << *in_vain));
            *in_vain = (*in_vain + 1).min(DOUBLINGS);
            link.writes.lost[lane.rail] = 0;
            self.events.push_back(Event::Cut(lane));
        }
    }

    /// Reports silent rails as up again whose time is over at `now`.
    pub(super) fn use_silent_rails(&mut self, peer: Rank, now: u64) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        for (rail, silent) in link.writes.silent.iter_mut().enumerate() {
            if silent.take_if(|until| now >= *until).is_some() && link.up[rail] {
                self.events.push_back(Event::Up(Lane { peer, rail }));
            }
        }
    }

    /// Number of windows open for a peer on a rail.
    fn opened_for(&mut self, Lane { peer, rail }: Lane) -> usize {
        let coming = self.writes(peer).coming.values().filter(|coming| coming.rail == rail);
        coming.flat_map(|coming| &coming.open).filter(|open| open.by.is_some()).count()
    }

    fn grant_copies(&mut self, peer: Rank, transfer: u32, window: u32, wanted: u64) {
        let Some(rail) = self.coming(peer, transfer).map(|coming| coming.rail) else { return };
        self.counted.datagram_repairs += u64::from(wanted.count_ones());
        let piece = piece(self.longest(rail)) as u32;
        self.note(Lane { peer, rail }, Note::Grant { transfer, window, wanted, piece, to: None });
    }

    /// Grants the waiting pieces after windows were closed.
    fn serve(&mut self) {
        for (peer, transfer, window) in std::mem::take(&mut self.windows.waiting) {
            let Some(rail) = self.coming(peer, transfer).map(|coming| coming.rail) else { continue };
            let piece = piece(self.longest(rail)) as u64;
            let Some(coming) = self.coming(peer, transfer) else { continue };
            let whole = pieces(coming.length, piece, window).0;
            let missing = coming.open.iter().find(|open| open.window == window).map(|open| open.missing & whole);
            if let Some(missing) = missing {
                self.grant(peer, transfer, window, missing);
            }
        }
    }

    /// Posts granted pieces, as many as the wire accepts.
    pub(super) fn go_on(&mut self, peer: Rank) {
        (0..self.rails.len()).for_each(|rail| self.go_on_by(Lane { peer, rail }));
    }

    fn go_on_by(&mut self, Lane { peer, rail }: Lane) {
        loop {
            let Some(link) = self.links.get_mut(&peer) else { return };
            let (Some(jobs), kept) = (link.writes.jobs.get_mut(&rail), link.outgoing.kept()) else { return };
            let Some(job) = jobs.front_mut() else { return };
            let (transfer, window) = (job.transfer, job.window);
            let Some(going) = link.writes.going.get_mut(&transfer) else {
                jobs.pop_front();
                continue;
            };
            let index = job.wanted.trailing_zeros();
            let is_last = job.wanted.is_power_of_two();
            let begins = (u64::from(window) * PIECES + u64::from(index)) * u64::from(job.piece);
            let length = (going.length - begins).min(job.piece.into()) as usize;
            let from = Part { memory: &going.memory, at: going.at + begins as usize, length };
            match job.to {
                // Datagrams posted on a lane that is down are lost. Copies may use any rail.
                Some(_) if !link.up[rail] => {
                    jobs.pop_front();
                    self.sent(peer, transfer, window, true);
                    continue;
                }
                Some(to) => {
                    let token = is_last.then(|| {
                        self.windows.tokens += 1;
                        TOKEN | self.windows.tokens << 32
                    });
                    let request = Request::Piece { from, to, index: index as u8, token };
                    if self.wire.post(Lane { peer, rail }, request).is_err() {
                        self.windows.refusals[rail].again(self.wire.now());
                        return;
                    }
                    self.windows.refusals[rail] = Refusal::default();
                    if let Some(token) = token {
                        self.windows.posted.insert(token, (peer, transfer, window));
                    }
                }
                None => {
                    if kept >= COPIES {
                        return;
                    }
                    let note = Note::Copy { transfer, window, index: index as u8 };
                    let head = note.encode();
                    let packet = Packet::new(&mut self.wire, rail, &head, Data::Of(from), &mut self.scratch, false);
                    let Some(packet) = packet else { return };
                    link.outgoing.push(packet.into_note());
                    going.left -= u32::from(is_last);
                    self.flush(peer, false);
                }
            }
            let Some(jobs) = self.writes(peer).jobs.get_mut(&rail) else { return };
            if is_last {
                jobs.pop_front();
            } else if let Some(job) = jobs.front_mut() {
                job.wanted &= job.wanted - 1;
            }
        }
    }

    /// Handles the completion of the last piece of a grant.
    pub(super) fn gone(&mut self, token: u64) {
        self.ended(token, false);
    }

    fn ended(&mut self, token: u64, is_cut: bool) {
        if let Some((peer, transfer, window)) = self.windows.posted.remove(&token) {
            self.sent(peer, transfer, window, is_cut);
            self.go_on(peer);
        }
    }

    fn sent(&mut self, peer: Rank, transfer: u32, window: u32, is_cut: bool) {
        if let Some(going) = self.writes(peer).going.get_mut(&transfer) {
            going.left -= 1;
            let rail = going.rail;
            self.windows.refusals[rail] = Refusal::default();
            self.note(Lane { peer, rail }, Note::Sent { transfer, window, is_cut });
        }
    }

    /// Handles the end of a lane, and of the pieces posted there.
    pub(super) fn lost_lane(&mut self, lane: Lane) {
        let Some(link) = self.links.get(&lane.peer) else { return };
        let of_lane = |(peer, transfer, _): &(Rank, u32, u32)| {
            *peer == lane.peer && link.writes.going.get(transfer).is_some_and(|going| going.rail == lane.rail)
        };
        let ended: Vec<u64> =
            self.windows.posted.iter().filter(|(_, of)| of_lane(of)).map(|(token, _)| *token).collect();
        ended.into_iter().for_each(|token| self.ended(token, true));
        self.attend(lane.peer);
    }

    /// Ends the writes into memory whose key is released.
    pub(super) fn end_writes_to(&mut self, rail: usize, key: Key) {
        if !self.rails[rail].write || self.rails[rail].kind != RailKind::Datagram {
            return;
        }
        let peers: Vec<Rank> =
            self.links.iter().filter(|(_, link)| !link.writes.coming.is_empty()).map(|(peer, _)| *peer).collect();
        for peer in peers {
            let all = std::mem::take(&mut self.writes(peer).coming);
            let (ended, stay) = all.into_iter().partition(|(_, coming)| coming.rail == rail && coming.into == key);
            self.writes(peer).coming = stay;
            let ended: BTreeMap<u32, Coming> = ended;
            ended.into_values().for_each(|coming| self.close(coming));
        }
        self.serve();
    }

    /// Ends all writes to and from a peer.
    pub(super) fn end_writes(&mut self, peer: Rank, writes: Writes<W::Memory>) {
        writes.coming.into_values().for_each(|coming| self.close(coming));
        self.windows.posted.retain(|_, (of, ..)| *of != peer);
        self.serve();
    }

    fn close(&mut self, coming: Coming) {
        for (key, _) in coming.open.into_iter().filter_map(|open| open.by) {
            self.wire.close_window(coming.rail, key);
            self.windows.open -= 1;
        }
    }
}
