//! Calls that move bytes unchanged. Longer calls are cut into rounds, and the sender is up to a few rounds ahead of its
//! readers.

use super::block::{HALF_CARRIES, LineKind};
use super::board::ShmCollective;
use super::broken::Failure;
use super::lines::Says;
use super::path_tuner::Kind;
use transom_locks::Rank;

/// A division of `len` bytes into rounds of `piece` bytes. An empty call has one round too, so that all ranks take
/// part.
#[derive(Clone, Copy)]
struct Cut {
    len: usize,
    piece: usize,
    rounds: usize,
}

impl Cut {
    /// Cuts `len` bytes into the fewest pieces of at most `most` bytes: about equal, and whole cache lines.
    #[inline(always)]
    fn of(len: usize, most: usize) -> Self {
        if len <= most {
            return Cut { len, piece: len, rounds: 1 };
        }
        let piece = len.div_ceil(len.div_ceil(most)).next_multiple_of(64).min(most);
        Cut { len, piece, rounds: len.div_ceil(piece) }
    }

    #[inline(always)]
    fn part(self, round: usize) -> std::ops::Range<usize> {
        let begin = round * self.piece;
        begin..self.len.min(begin + self.piece)
    }
}

impl ShmCollective {
    /// Blocks until all ranks have called it.
    ///
    /// # Errors
    /// Errors of [`ShmCollective`], which apply to all calls.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// board.barrier(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn barrier(&mut self, call: u64) -> Result<(), Failure> {
        self.lines.begin("barrier", call, Says::All(0))?;
        if self.lines.is_pair() {
            return self.lines.exchange(&[], &mut []);
        }
        let round = self.lines.post(&[])?;
        self.lines.see_all(round)
    }

    /// Copies `data` of the root to `data` of every other rank.
    ///
    /// # Errors
    /// See [`ShmCollective`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if there is no such root.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut data = *b"of rank 0";
    /// board.broadcast(2, 0, &mut data)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn broadcast(&mut self, call: u64, root: Rank, data: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("broadcast", call, Says::Some(data.len()))?;
        self.must_be_rank(root)?;
        if data.len() <= HALF_CARRIES {
            return self.copy_piece_from_root(LineKind::Half, root, true, data);
        }
        self.on_either_path(Kind::Broadcast, data.len(), |board, reach| match reach {
            Some(reach) if board.lines.me == root => board.offer_to_all(reach, data, || {}),
            Some(reach) => board.read_root(reach, root, 0, data),
            None => board.copy_from_root(root, data),
        })
    }

    /// Copies `data` through cells: the root writes it and the other ranks read it.
    #[inline]
    pub(super) fn copy_from_root(&mut self, root: Rank, data: &mut [u8]) -> Result<(), Failure> {
        let most = self.lines.block.cell_bytes();
        if data.len() <= most {
            return self.copy_piece_from_root(LineKind::Lines, root, true, data);
        }
        let cut = Cut::of(data.len(), most);
        for step in 0..cut.rounds {
            self.copy_piece_from_root(LineKind::Lines, root, step == 0, &mut data[cut.part(step)])?;
        }
        Ok(())
    }

    #[inline(always)]
    fn copy_piece_from_root(
        &mut self,
        place: LineKind,
        root: Rank,
        first: bool,
        part: &mut [u8],
    ) -> Result<(), Failure> {
        if self.lines.me == root {
            let round = self.lines.post_at(place, part)?;
            return if first { self.meet(round) } else { Ok(()) };
        }
        let round = self.lines.post_at(place, &[])?;
        if first {
            self.meet(round)?;
        }
        self.lines.take_at(place, root, round, (part.len(), 0), part)
    }

    /// Gathers `mine` of every rank at every rank. `into` has one block of `mine.len()` bytes per rank, in the order of
    /// ranks.
    ///
    /// # Errors
    /// See [`ShmCollective`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `into` has another
    /// length.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut all = [0; 3];
    /// board.all_gather(3, b"abc", &mut all)?;
    /// assert_eq!(&all, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_gather(&mut self, call: u64, mine: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("all_gather", call, Says::All(mine.len()))?;
        self.must_hold_blocks(into, mine)?;
        self.on_either_path(Kind::AllGather, mine.len(), |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, None, mine, (mine.len(), |_| 0), into),
            None => board.gather_blocks(None, mine, into),
        })
    }

    /// [`all_gather`](Self::all_gather) to the root only. Other ranks' `into` is unused and may be empty.
    ///
    /// # Errors
    /// Errors of `all_gather`, and [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `root` is no rank
    /// of the board.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut all = [0; 3];
    /// board.gather(4, 0, b"abc", &mut all)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gather(&mut self, call: u64, root: Rank, mine: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("gather", call, Says::Some(mine.len()))?;
        self.must_be_rank(root)?;
        if self.lines.me == root {
            self.must_hold_blocks(into, mine)?;
        }
        self.on_either_path(Kind::Gather, mine.len(), |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, Some(root), mine, (mine.len(), |_| 0), into),
            None => board.gather_blocks(Some(root), mine, into),
        })
    }

    pub(super) fn must_hold_blocks(&self, into: &[u8], mine: &[u8]) -> Result<(), Failure> {
        let ranks = self.ranks();
        self.must(Some(into.len()) == mine.len().checked_mul(ranks), || {
            format!("a buffer of {} bytes, expected {ranks} blocks of {} bytes", into.len(), mine.len())
        })
    }

    /// Gathers through cells. Every rank posts a piece of its block in each round; a gathering rank posts its next
    /// piece before it reads.
    pub(super) fn gather_blocks(&mut self, root: Option<Rank>, mine: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        let me = self.lines.me;
        let keep = root.is_none_or(|root| root == me);
        let cut = Cut::of(mine.len(), self.lines.block.cell_bytes());
        // No other rank reads the root's own block.
        let given = |step| if root == Some(me) { &[] } else { &mine[cut.part(step)] };
        let mut round = self.lines.post(given(0))?;
        if keep {
            into[me * mine.len()..][..mine.len()].copy_from_slice(mine);
        } else {
            self.meet(round)?;
        }
        for step in 0..cut.rounds {
            let next = if step + 1 < cut.rounds { self.lines.post(given(step + 1))? } else { round };
            let part = cut.part(step);
            for rank in self.lines.others().filter(|_| keep) {
                let block = &mut into[rank * mine.len()..][..mine.len()];
                self.lines.take(rank, round, (part.len(), 0), &mut block[part.clone()])?;
            }
            round = next;
        }
        Ok(())
    }

    /// Sends block `r` of `given` to rank `r`, and receives one block from each rank. `given` has one block per rank,
    /// all of equal length; `into` has the same length and holds the received blocks in the order of ranks.
    ///
    /// # Errors
    /// See [`ShmCollective`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if the lengths differ, or
    /// are no multiple of the number of ranks.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut into = [0; 3];
    /// board.all_to_all(5, b"abc", &mut into)?;
    /// assert_eq!(&into, b"abc"); // A job of one rank.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_to_all(&mut self, call: u64, given: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("all_to_all", call, Says::All(given.len()))?;
        let ranks = self.ranks();
        self.must(given.len() == into.len() && given.len().is_multiple_of(ranks), || {
            format!(
                "buffers of {} and {} bytes, expected equal lengths that are a multiple of {ranks} ranks",
                given.len(),
                into.len()
            )
        })?;
        let len = given.len() / ranks;
        self.on_either_path(Kind::AllToAll, len, |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, None, given, (len, |reader| reader * len), into),
            None => board.copy_blocks(len, given, into),
        })
    }

    /// Exchanges blocks through cells. In each round every rank posts a piece of each block, and reads its own pieces.
    fn copy_blocks(&mut self, len: usize, given: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        let (me, ranks) = (self.lines.me, self.ranks());
        let cut = Cut::of(len, self.lines.block.cell_bytes() / ranks);
        let mut round = self.post_blocks(cut, 0, given)?;
        into[me * len..][..len].copy_from_slice(&given[me * len..][..len]);
        for step in 0..cut.rounds {
            let next = if step + 1 < cut.rounds { self.post_blocks(cut, step + 1, given)? } else { round };
            let part = cut.part(step);
            for rank in self.lines.others() {
                let block = &mut into[rank * len..][..len];
                self.lines.take(rank, round, (part.len() * ranks, me * part.len()), &mut block[part.clone()])?;
            }
            round = next;
        }
        Ok(())
    }

    /// Sends block `r` of the root's `given` to rank `r`. `given` has one block of `into.len()` bytes per rank. Other
    /// ranks' `given` is unused and may be empty.
    ///
    /// # Errors
    /// See [`ShmCollective`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `root` is no rank of the
    /// board, or if `given` at the root is not one block of `into.len()` bytes per rank.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut into = [0; 3];
    /// board.scatter(6, 0, b"abc", &mut into)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scatter(&mut self, call: u64, root: Rank, given: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("scatter", call, Says::Some(into.len().saturating_mul(self.ranks())))?;
        self.must_be_rank(root)?;
        let (me, len) = (self.lines.me, into.len());
        if me == root {
            self.must_hold_blocks(given, into)?;
        }
        self.on_either_path(Kind::Scatter, len, |board, reach| match reach {
            Some(reach) if me == root => {
                board.offer_to_all(reach, given, || into.copy_from_slice(&given[me * len..][..len]))
            }
            Some(reach) => board.read_root(reach, root, me * len, into),
            None => board.scatter_blocks(root, given, into),
        })
    }

    /// Scatters through cells. In each round the root posts a piece of each block, and every other rank reads its own.
    fn scatter_blocks(&mut self, root: Rank, given: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        let (me, ranks, len) = (self.lines.me, self.ranks(), into.len());
        if me == root {
            into.copy_from_slice(&given[me * len..][..len]);
        }
        let cut = Cut::of(len, self.lines.block.cell_bytes() / ranks);
        for step in 0..cut.rounds {
            let round = if me == root { self.post_blocks(cut, step, given)? } else { self.lines.post(&[])? };
            if step == 0 {
                self.meet(round)?;
            }
            if me != root {
                let part = cut.part(step);
                self.lines.take(root, round, (part.len() * ranks, me * part.len()), &mut into[part])?;
            }
        }
        Ok(())
    }

    /// Posts a piece of every block except this rank's own, each at the offset of its rank.
    #[inline]
    fn post_blocks(&mut self, cut: Cut, step: usize, given: &[u8]) -> Result<u64, Failure> {
        let part = cut.part(step);
        let piece = |rank| (rank * part.len(), &given[rank * cut.len..][..cut.len][part.clone()]);
        self.lines.post_parts(part.len() * self.ranks(), self.lines.others().map(piece))
    }
}
