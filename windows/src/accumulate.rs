//! Accumulates: operations on elements that are atomic with respect to every other accumulate of any rank, for all
//! operations and element widths, and ordered for each origin, target and element.
//!
//! A fabric has only 64-bit compare-and-swap and fetch-and-add on aligned words. An element lies within one word, since
//! a part begins at a cache line and ends with a whole word, and elements are aligned to their size. Every accumulate
//! therefore consists of these two verbs on the words that hold its elements. A sum of 8-byte integers is a
//! fetch-and-add. Every other operation is a compare-and-swap of the word with its intended value, repeated with the
//! value found until it succeeds (except what a fabric can do [at once](Fabric::words)). The elements of one word are
//! changed by one compare-and-swap. Each verb is complete before the next starts, which orders them.
//!
//! An element of less than 8 bytes is therefore written together with its neighbours in the word. An adapter's
//! compare-and-swap is atomic only with respect to other atomics of the adapter: a put to a neighbour, or a store of
//! the home rank, that comes in between may be lost. Shared memory has no such gap.
//!
//! A long accumulate reads, changes and writes back at memory speed, while no other update is admitted at its target
//! (`updates.rs`). So does every accumulate on memory without atomics.
//!
//! An epoch that locks its target exclusively excludes every other lock epoch there, so it changes more than one word
//! in this way without admission. (To expose a target by fence or post while another rank has it locked is an error, as
//! in MPI; accumulates may then be lost.) It excludes other threads of this rank too, since threads do not share such a
//! target.

use crate::op::by_constant;
use crate::target::Target;
use crate::{Atomic, Error, Fabric, FabricError, Op, UpdateInPlace, Wake};
use bytemuck::Pod;
use std::sync::atomic::Ordering::SeqCst;
use transom_locks::Run;

/// Bytes per piece in which elements are read, changed and written back.
const PIECE: usize = 4096;
/// Bytes of a piece that needs no heap memory.
const SMALL: usize = 64;

/// The bound on [`Atomic`] is on each call instead of the impl, so that the compiler's message for another type is
/// useful.
impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Replaces an element by the result of an operation on it, atomically with respect to every accumulate of every
    /// rank, and returns its previous value.
    ///
    /// Costs here and below are those of a thread that is admitted for singles at the target (`docs/cost.md`).
    ///
    /// Sums of 8-byte integers cost 1 fetch-and-add. [`Op::NoOp`] costs 1 read of the word, which over a network is a
    /// fetch-and-add of 0. Other operations cost 1 read, and compare-and-swaps until one succeeds: 1 if no other rank
    /// is changing the word. Over a network, an operation on an element of less than 8 bytes may undo a concurrent put
    /// or store to a neighbour in the same aligned 8 bytes; accumulates to neighbours are safe.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]; [`Error::Operation`] if the operation is not defined for floats; [`Error::Fabric`].
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?;
    /// assert_eq!(epoch.fetch_and_op(0, Op::Sum, 5)?, 0);
    /// assert_eq!(epoch.fetch_and_op(0, Op::Max, 3)?, 5);
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn fetch_and_op(&self, offset: usize, op: Op, operand: T) -> Result<T, Error>
    where
        T: Atomic,
    {
        self.core.data.counters.atomics.bump();
        self.supported(op)?;
        let at = self.place(offset, 1)?;
        if !self.admits_this_thread() {
            return self.fetch_unadmitted(at, offset, op, operand);
        }
        if let Some(mut word) = self.change_at_once(at, op, &[operand]) {
            return Ok(elements(&mut word, at)[0]);
        }
        match self.apply_in_word(at, op, &[operand]) {
            Ok(mut word) => Ok(elements(&mut word, at)[0]),
            Err(error) => Err(self.error(error, offset, 1)),
        }
    }

    /// Puts `new` if the element equals `expected`, bit for bit, and returns the previous value, which is `expected` on
    /// success. As atomic as [`fetch_and_op`](Self::fetch_and_op).
    ///
    /// Elements of 8 bytes cost 1 compare-and-swap. Others cost 1 read, and compare-and-swaps until one succeeds.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Fabric`].
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.lock_shared(0)?;
    /// assert_eq!(epoch.compare_and_swap(0, 0, 9)?, 0); // it was 0, so it is 9 now
    /// assert_eq!(epoch.compare_and_swap(0, 0, 1)?, 9); // and stays 9
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn compare_and_swap(&self, offset: usize, expected: T, new: T) -> Result<T, Error>
    where
        T: Atomic,
    {
        self.core.data.counters.atomics.bump();
        let at = self.place(offset, 1)?;
        if !self.admits_this_thread() {
            return self.swap_unadmitted(at, offset, expected, new);
        }
        if size_of::<T>() == 8
            && let Some(word) = self.core.data.fabric.one_word(self.remote, at)
        {
            let found = word.compare_exchange(word_of(expected), word_of(new), SeqCst, SeqCst);
            let mut found = found.unwrap_or_else(|found| found);
            return Ok(elements(&mut found, at)[0]);
        }
        match self.swap_in_word(at, expected, new) {
            Ok(mut word) => Ok(elements(&mut word, at)[0]),
            Err(error) => Err(self.error(error, offset, 1)),
        }
    }

    /// Replaces each element from `offset` on by the result of an operation on it and its operand. Each element is
    /// changed as atomically as by [`fetch_and_op`](Self::fetch_and_op); the whole is not one atomic operation.
    ///
    /// Sums of 8-byte integers cost 1 fetch-and-add each; [`Op::NoOp`] costs nothing. Other operations cost, for each
    /// word of 8 bytes (1, 2, 4 or 8 elements), 1 read, and compare-and-swaps until one succeeds. Longer calls, from
    /// 512 bytes on in shared memory and from 32 on over a network, cost 1 compare-and-swap, 1 read and 1 write per 4
    /// KiB, and 1 fetch-and-add, unless other threads are admitted for singles there. In an epoch that locks the target
    /// exclusively, more than one word costs 1 read and 1 write per 4 KiB.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], and [`Error::Operation`] if the operation is not defined for floats: no element is
    /// changed. [`Error::Fabric`]: elements before the failure are changed.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<i16, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?;
    /// epoch.accumulate(1, Op::Sum, &[1, 2, -3])?;
    /// epoch.accumulate(1, Op::Max, &[0, 5])?;
    /// let mut now = [0; 5];
    /// epoch.get(0, &mut now)?;
    /// assert_eq!(now, [0, 1, 5, -3, 0]);
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn accumulate(&self, offset: usize, op: Op, operands: &[T]) -> Result<(), Error>
    where
        T: Atomic,
    {
        self.core.data.counters.accumulates.bump();
        self.supported(op)?;
        let at = self.place(offset, operands.len())?;
        if let &[operand] = operands
            && self.admits_this_thread()
            && self.change_unasked(at, op, operand).is_some()
        {
            return Ok(());
        }
        self.accumulate_at(at, offset, op, operands)
    }

    #[inline(never)]
    fn accumulate_at(&self, at: usize, offset: usize, op: Op, operands: &[T]) -> Result<(), Error>
    where
        T: Atomic,
    {
        let (len, bytes) = (operands.len(), size_of_val(operands));
        let alone = || self.change_exclusively(at, op, operands, None);
        let singles = || in_words(at, operands, |at, _, operands| self.apply_in_word(at, op, operands).map(drop));
        if op == Op::NoOp || operands.is_empty() {
            Ok(())
        } else if self.exclusive.get() && bytes > 8 {
            alone().map_err(|error| self.error(error, offset, len))
        } else if self.is_run(bytes) {
            self.run(offset, len, |run| if run == Run::Alone { alone() } else { singles() })
        } else {
            self.single(offset, len, singles)
        }
    }

    /// [`accumulate`](Self::accumulate) that also writes each element's previous value to `results`. [`Op::NoOp`]
    /// ignores the operands, and reads the elements of each word atomically.
    ///
    /// Sums of 8-byte integers cost 1 fetch-and-add each; [`Op::NoOp`] costs 1 read per word of 8 bytes. Other
    /// operations cost, for each word, 1 read, and compare-and-swaps until one succeeds. Long calls, and calls in an
    /// epoch that locks the target exclusively, cost as much as `accumulate`; in such an epoch [`Op::NoOp`] costs 1
    /// get.
    ///
    /// # Errors
    /// The errors of `accumulate`; [`Error::BufferLength`] if `results` and `operands` differ in length.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u32, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?;
    /// let mut before = [0; 3];
    /// epoch.accumulate(4, Op::Replace, &[7, 8, 9])?;
    /// epoch.get_accumulate(4, Op::Sum, &[10, 20, 30], &mut before)?;
    /// assert_eq!(before, [7, 8, 9]);
    /// assert_eq!(epoch.get_one(6)?, 39);
    /// assert!(epoch.get_accumulate(4, Op::Sum, &[1, 1], &mut before).is_err());
    /// epoch.unlock()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_accumulate(&self, offset: usize, op: Op, operands: &[T], results: &mut [T]) -> Result<(), Error>
    where
        T: Atomic,
    {
        self.core.data.counters.accumulates.bump();
        self.supported(op)?;
        if operands.len() != results.len() {
            let (window, rank) = (self.core.id, self.rank());
            return Err(Error::BufferLength { window, rank, needed: operands.len(), buffer: results.len() });
        }
        let (at, len, bytes) = (self.place(offset, operands.len())?, operands.len(), size_of_val(operands));
        let singles = |results: &mut [T]| {
            in_words(at, operands, |at, index, operands| {
                let mut word = self.apply_in_word(at, op, operands)?;
                results[index..][..operands.len()].copy_from_slice(&elements(&mut word, at)[..operands.len()]);
                Ok(())
            })
        };
        let alone = |results| self.change_exclusively(at, op, operands, Some(results));
        if operands.is_empty() {
            Ok(())
        } else if self.exclusive.get() && bytes > 8 {
            alone(results).map_err(|error| self.error(error, offset, len))
        } else if self.is_run(bytes) {
            self.run(offset, len, |run| if run == Run::Alone { alone(results) } else { singles(results) })
        } else {
            self.single(offset, len, || singles(results))
        }
    }
}

impl<T: Atomic, F: Fabric> Target<'_, T, F> {
    /// Applies an operation to elements at offsets that are inside, each a word that the processor changes by one
    /// instruction. Returns false, and does nothing, if they are not such words. Places and operands are loaded a few
    /// at a time, ahead of the atomics: a load after an atomic waits for it.
    pub(crate) fn accumulate_each(&self, offsets: &[usize], op: Op, operands: &[T]) -> Result<bool, Error> {
        const AHEAD: usize = 4;
        let one_instruction = match op {
            Op::Sum | Op::And | Op::Or | Op::Xor => T::INTEGER,
            Op::Replace => true,
            _ => false,
        };
        if size_of::<T>() != 8 || !one_instruction || !self.gate.atomics {
            return Ok(false);
        }
        let Some(words) = self.core.data.fabric.words(self.remote, self.base, self.len) else { return Ok(false) };
        self.core.data.counters.accumulates.add(offsets.len() as u64);
        macro_rules! each {
            ($change:ident) => {{
                let (places, rest) = offsets.as_chunks::<AHEAD>();
                let (changes, rest_changes) = operands.as_chunks::<AHEAD>();
                for (places, changes) in places.iter().zip(changes) {
                    let (places, changes) = (*places, changes.map(word_of));
                    for i in 0..AHEAD {
                        words[places[i]].$change(changes[i], SeqCst);
                    }
                }
                for (&place, &change) in rest.iter().zip(rest_changes) {
                    words[place].$change(word_of(change), SeqCst);
                }
            }};
        }
        self.single(0, offsets.len(), || {
            match op {
                Op::Sum => each!(fetch_add),
                Op::And => each!(fetch_and),
                Op::Or => each!(fetch_or),
                Op::Xor => each!(fetch_xor),
                _ => each!(swap),
            }
            Ok(true)
        })
    }

    /// Applies an operation to elements of one word, the first at byte `at`; returns the word's previous value.
    fn apply_in_word(&self, at: usize, op: Op, operands: &[T]) -> Result<u64, FabricError> {
        let fabric = &self.core.data.fabric;
        match (op, operands) {
            (Op::NoOp, _) => fabric.read_word(self.remote, word_at::<T>(at)),
            (Op::Sum, &[operand]) if T::INTEGER && size_of::<T>() == 8 => {
                fabric.finish(fabric.start_add(self.remote, at, word_of(operand), Wake::Nobody)?)
            }
            _ => match self.change_at_once(at, op, operands) {
                Some(found) => Ok(found),
                None => self.change_word(at, |elements| {
                    for (element, &operand) in elements.iter_mut().zip(operands) {
                        *element = T::apply(op, *element, operand);
                    }
                }),
            },
        }
    }

    /// [`apply_in_word`](Self::apply_in_word) in one step, if the fabric has that. The bits of neighbours get the
    /// operand that changes nothing.
    #[inline(always)]
    fn change_at_once(&self, at: usize, op: Op, operands: &[T]) -> Option<u64> {
        let word = || self.core.data.fabric.one_word(self.remote, word_at::<T>(at));
        let with = |mut neutral: u64| {
            elements(&mut neutral, at)[..operands.len()].copy_from_slice(operands);
            neutral
        };
        Some(match op {
            Op::Sum if T::INTEGER && size_of::<T>() == 8 && operands.len() == 1 => word()?.fetch_add(with(0), SeqCst),
            Op::And if T::INTEGER => word()?.fetch_and(with(u64::MAX), SeqCst),
            Op::Or if T::INTEGER => word()?.fetch_or(with(0), SeqCst),
            Op::Xor if T::INTEGER => word()?.fetch_xor(with(0), SeqCst),
            Op::Replace if size_of::<T>() == 8 => word()?.swap(with(0), SeqCst),
            _ => return None,
        })
    }

    /// [`change_at_once`](Self::change_at_once) of one element whose previous value is not needed: one instruction,
    /// where the processor has it.
    #[inline(always)]
    fn change_unasked(&self, at: usize, op: Op, operand: T) -> Option<()> {
        let word = || self.core.data.fabric.one_word(self.remote, word_at::<T>(at));
        let with = |mut neutral: u64| {
            elements(&mut neutral, at)[0] = operand;
            neutral
        };
        // The word's previous value is dropped here, so that the compiler emits no loop to read it.
        match op {
            Op::Sum if T::INTEGER && size_of::<T>() == 8 => _ = word()?.fetch_add(word_of(operand), SeqCst),
            Op::And if T::INTEGER => _ = word()?.fetch_and(with(u64::MAX), SeqCst),
            Op::Or if T::INTEGER => _ = word()?.fetch_or(with(0), SeqCst),
            Op::Xor if T::INTEGER => _ = word()?.fetch_xor(with(0), SeqCst),
            Op::Replace if size_of::<T>() == 8 => _ = word()?.swap(with(0), SeqCst),
            _ => return None,
        }
        Some(())
    }

    /// Applies an operation to elements from byte `at` on while no other rank or thread can, by reading and writing
    /// them piece by piece. Their previous values go to `results`, if it is given.
    fn change_exclusively(
        &self,
        at: usize,
        op: Op,
        operands: &[T],
        mut results: Option<&mut [T]>,
    ) -> Result<(), FabricError> {
        if let (Op::NoOp, Some(results)) = (op, &mut results) {
            return self.core.data.fabric.get(self.remote, at, bytemuck::cast_slice_mut(results));
        }
        let done = self.change_in_place(at, op, operands, results.as_deref_mut());
        let (at, operands) = (at + done * size_of::<T>(), &operands[done..]);
        let mut results = results.map(|results| &mut results[done..]);
        if size_of_val(operands) <= SMALL {
            let mut elements = [0u64; SMALL / 8];
            let elements = &mut bytemuck::cast_slice_mut(&mut elements)[..operands.len()];
            return self.change_piece(at, op, operands, elements, results);
        }
        let piece = PIECE / size_of::<T>();
        let mut elements = vec![T::zeroed(); piece.min(operands.len())];
        for (index, operands) in (0..).step_by(piece).zip(operands.chunks(piece)) {
            let results = results.as_mut().map(|results| &mut results[index..][..operands.len()]);
            let elements = &mut elements[..operands.len()];
            self.change_piece(at + index * size_of::<T>(), op, operands, elements, results)?;
        }
        Ok(())
    }

    /// Changes whole blocks of 64 bytes in place, where this processor reaches them; returns the number of elements
    /// changed.
    fn change_in_place(&self, at: usize, op: Op, operands: &[T], results: Option<&mut [T]>) -> usize {
        let (fabric, in_block) = (&self.core.data.fabric, 64 / size_of::<T>());
        let blocks = operands.len() / in_block;
        if blocks == 0 {
            return 0;
        }
        let changed = by_constant!(op, |OP| {
            let apply = |element, operand| T::apply(OP, element, operand);
            fabric.change_blocks(self.remote, at, blocks, InPlace { operands, results, apply })
        });
        if changed { blocks * in_block } else { 0 }
    }

    /// Reads as many elements as each slice has, and writes the results of the operation.
    fn change_piece(
        &self,
        at: usize,
        op: Op,
        operands: &[T],
        elements: &mut [T],
        results: Option<&mut [T]>,
    ) -> Result<(), FabricError> {
        self.core.data.fabric.get(self.remote, at, bytemuck::cast_slice_mut(elements))?;
        if let Some(results) = results {
            results.copy_from_slice(elements);
        }
        T::apply_all(op, elements, operands);
        self.write_back(at, elements)
    }

    /// Puts elements that no other rank or thread changes meanwhile. The accumulate is complete on return: a later put
    /// of this rank to the same elements, or a release that admits others, is ordered after it.
    fn write_back(&self, at: usize, elements: &[T]) -> Result<(), FabricError> {
        let fabric = &self.core.data.fabric;
        fabric.put(self.remote, at, bytemuck::cast_slice(elements))?;
        fabric.order(self.remote)
    }

    #[cold]
    #[inline(never)]
    fn fetch_unadmitted(&self, at: usize, offset: usize, op: Op, operand: T) -> Result<T, Error> {
        if self.gate.atomics {
            let mut word = self.admit(offset, 1, || self.apply_in_word(at, op, &[operand]))?;
            return Ok(elements(&mut word, at)[0]);
        }
        let mut result = [operand];
        self.run(offset, 1, |_| self.change_exclusively(at, op, &[operand], Some(&mut result)))?;
        Ok(result[0])
    }

    #[cold]
    #[inline(never)]
    fn swap_unadmitted(&self, at: usize, offset: usize, expected: T, new: T) -> Result<T, Error> {
        if self.gate.atomics {
            let mut word = self.admit(offset, 1, || self.swap_in_word(at, expected, new))?;
            return Ok(elements(&mut word, at)[0]);
        }
        let fabric = &self.core.data.fabric;
        self.run(offset, 1, |_| {
            let mut found = expected;
            fabric.get(self.remote, at, bytemuck::bytes_of_mut(&mut found))?;
            if bytemuck::bytes_of(&found) == bytemuck::bytes_of(&expected) {
                self.write_back(at, &[new])?;
            }
            Ok(found)
        })
    }

    #[inline(always)]
    fn swap_in_word(&self, at: usize, expected: T, new: T) -> Result<u64, FabricError> {
        if size_of::<T>() == 8 {
            return self.core.data.fabric.cas(self.remote, at, word_of(expected), word_of(new), Wake::Nobody);
        }
        // A swap of the word by itself must succeed even if the element differs from `expected`: the read before it was
        // not atomic.
        self.change_word(at, |elements| {
            if bytemuck::bytes_of(&elements[0]) == bytemuck::bytes_of(&expected) {
                elements[0] = new;
            }
        })
    }

    /// Changes elements of one word, from byte `at` on, by compare-and-swap; returns the word's previous value.
    fn change_word(&self, at: usize, change: impl Fn(&mut [T])) -> Result<u64, FabricError> {
        let fabric = &self.core.data.fabric;
        let mut seen = 0;
        // A guess. User memory may end within the word; then this read fails, and the compare-and-swap returns the
        // error.
        let _ = fabric.get(self.remote, word_at::<T>(at), bytemuck::bytes_of_mut(&mut seen));
        loop {
            let mut new = seen;
            change(elements(&mut new, at));
            let found = fabric.cas(self.remote, word_at::<T>(at), seen, new, Wake::Nobody)?;
            if found == seen {
                return Ok(seen);
            }
            seen = found;
        }
    }

    #[inline]
    fn supported(&self, op: Op) -> Result<(), Error> {
        if T::supports(op) { Ok(()) } else { Err(self.meaningless(op)) }
    }

    #[cold]
    fn meaningless(&self, op: Op) -> Error {
        Error::Operation { window: self.core.id, rank: self.rank(), op, element: std::any::type_name::<T>() }
    }
}

/// An operation on elements in place.
struct InPlace<'a, T, A> {
    operands: &'a [T],
    results: Option<&'a mut [T]>,
    apply: A,
}

impl<T: Pod, A: Fn(T, T) -> T> UpdateInPlace for InPlace<'_, T, A> {
    #[inline(always)]
    fn change(&mut self, number: usize, block: &mut [u64; 8]) {
        let elements = bytemuck::cast_slice_mut::<_, T>(block);
        let here = number * (64 / size_of::<T>())..(number + 1) * (64 / size_of::<T>());
        if let Some(results) = &mut self.results {
            results[here.clone()].copy_from_slice(elements);
        }
        for (element, &operand) in elements.iter_mut().zip(&self.operands[here]) {
            *element = (self.apply)(*element, operand);
        }
    }
}

/// Passes on operands word by word: the byte of the first, its index, and the operands whose elements lie in the word.
#[inline]
fn in_words<T>(
    mut at: usize,
    operands: &[T],
    mut each: impl FnMut(usize, usize, &[T]) -> Result<(), FabricError>,
) -> Result<(), FabricError> {
    let mut index = 0;
    while index < operands.len() {
        let here = ((8 - at % 8) / size_of::<T>()).min(operands.len() - index);
        each(at, index, &operands[index..][..here])?;
        (at, index) = (at + here * size_of::<T>(), index + here);
    }
    Ok(())
}

/// Offset of the word that holds the element at byte `at`; an element of 8 bytes is a word itself.
#[inline(always)]
fn word_at<T>(at: usize) -> usize {
    if size_of::<T>() == 8 { at } else { at - at % 8 }
}

/// The elements of a word, from the one at byte `at` on, in memory order.
#[inline(always)]
fn elements<T: Atomic>(word: &mut u64, at: usize) -> &mut [T] {
    let first = if size_of::<T>() == 8 { 0 } else { at % 8 / size_of::<T>() };
    &mut bytemuck::cast_slice_mut(std::slice::from_mut(word))[first..]
}

/// An element of 8 bytes as a word.
#[inline(always)]
fn word_of<T: Atomic>(element: T) -> u64 {
    bytemuck::cast(element)
}
