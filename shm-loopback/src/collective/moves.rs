//! Calls that move bytes as they are. Longer ones are cut into rounds; who sends is up to a few rounds ahead of who reads.

use super::block::{HALF_CARRIES, Place};
use super::board::Board;
use super::broken::Failure;
use super::lines::Says;
use super::ways::Kind;
use transom_locks::Rank;

/// How a length is cut into rounds: at least one, so that even nothing is called by all.
#[derive(Clone, Copy)]
struct Cut {
    len: usize,
    piece: usize,
    rounds: usize,
}

impl Cut {
    /// Into as few pieces of at most `most` bytes as there can be, about equal, in whole cache lines.
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

impl Board {
    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`Board`]; so for all calls.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
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

    /// Copies the `data` of the root to that of all others.
    ///
    /// # Errors
    /// See [`Board`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if there is no such root.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
    /// let mut data = *b"of rank 0";
    /// board.broadcast(2, 0, &mut data)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn broadcast(&mut self, call: u64, root: Rank, data: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("broadcast", call, Says::Some(data.len()))?;
        self.must_be_rank(root)?;
        if data.len() <= HALF_CARRIES {
            return self.copy_piece_from_root(Place::Half, root, true, data);
        }
        self.either_way(Kind::Broadcast, data.len(), |board, reach| match reach {
            Some(reach) if board.lines.me == root => board.offer_to_all(reach, data, || {}),
            Some(reach) => board.read_root(reach, root, 0, data),
            None => board.copy_from_root(root, data),
        })
    }

    /// The root puts its bytes into cells, and the others take them out.
    #[inline]
    pub(super) fn copy_from_root(&mut self, root: Rank, data: &mut [u8]) -> Result<(), Failure> {
        let most = self.lines.block.cell_bytes();
        if data.len() <= most {
            return self.copy_piece_from_root(Place::Lines, root, true, data);
        }
        let cut = Cut::of(data.len(), most);
        for step in 0..cut.rounds {
            self.copy_piece_from_root(Place::Lines, root, step == 0, &mut data[cut.part(step)])?;
        }
        Ok(())
    }

    #[inline(always)]
    fn copy_piece_from_root(&mut self, place: Place, root: Rank, first: bool, part: &mut [u8]) -> Result<(), Failure> {
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

    /// Gives every rank the bytes of all, in the order of ranks: `into` has so many blocks as long as `mine`.
    ///
    /// # Errors
    /// See [`Board`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `into` has another length.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
    /// let mut all = [0; 3];
    /// board.all_gather(3, b"abc", &mut all)?;
    /// assert_eq!(&all, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_gather(&mut self, call: u64, mine: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("all_gather", call, Says::All(mine.len()))?;
        self.must_hold_blocks(into, mine)?;
        self.either_way(Kind::AllGather, mine.len(), |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, None, mine, (mine.len(), |_| 0), into),
            None => board.gather_blocks(None, mine, into),
        })
    }

    /// [`all_gather`](Self::all_gather) to the root alone; what others give for `into` is not used, and may be nothing.
    ///
    /// # Errors
    /// As there; also if there is no such root.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
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
        self.either_way(Kind::Gather, mine.len(), |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, Some(root), mine, (mine.len(), |_| 0), into),
            None => board.gather_blocks(Some(root), mine, into),
        })
    }

    pub(super) fn must_hold_blocks(&self, into: &[u8], mine: &[u8]) -> Result<(), Failure> {
        let ranks = self.ranks();
        self.must(Some(into.len()) == mine.len().checked_mul(ranks), || {
            format!("{} bytes for {ranks} blocks of {}", into.len(), mine.len())
        })
    }

    /// All post a piece of their block in each round; who gathers has posted the next when it reads.
    pub(super) fn gather_blocks(&mut self, root: Option<Rank>, mine: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        let me = self.lines.me;
        let keep = root.is_none_or(|root| root == me);
        let cut = Cut::of(mine.len(), self.lines.block.cell_bytes());
        // The root's own bytes are for nobody else.
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

    /// Gives rank `r` the `r`th of as many equal blocks of `given` as there are ranks, and takes one from each: `into`, as long
    /// as `given`, has them in the order of ranks.
    ///
    /// # Errors
    /// See [`Board`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if the lengths differ, or are no multiple of the
    /// number of ranks.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
    /// let mut into = [0; 3];
    /// board.all_to_all(5, b"abc", &mut into)?;
    /// assert_eq!(&into, b"abc"); // of a rank alone
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_to_all(&mut self, call: u64, given: &[u8], into: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("all_to_all", call, Says::All(given.len()))?;
        let ranks = self.ranks();
        self.must(given.len() == into.len() && given.len().is_multiple_of(ranks), || {
            format!("{} bytes given, {} taken, by {ranks} ranks", given.len(), into.len())
        })?;
        let len = given.len() / ranks;
        self.either_way(Kind::AllToAll, len, |board, reach| match reach {
            Some(reach) => board.read_blocks(reach, None, given, (len, |reader| reader * len), into),
            None => board.copy_blocks(len, given, into),
        })
    }

    /// All post the blocks for all others, a piece of each in each round, and take theirs.
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

    /// Gives rank `r` the `r`th of as many equal blocks of the root's `given` as there are ranks. What others give is not
    /// used, and may be nothing.
    ///
    /// # Errors
    /// See [`Board`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if there is no such root, or its bytes are not
    /// so many as `into` at each rank.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::Board};
    /// # let mut board = Board::open(&Loopback::alone()?)?;
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
        self.either_way(Kind::Scatter, len, |board, reach| match reach {
            Some(reach) if me == root => {
                board.offer_to_all(reach, given, || into.copy_from_slice(&given[me * len..][..len]))
            }
            Some(reach) => board.read_root(reach, root, me * len, into),
            None => board.scatter_blocks(root, given, into),
        })
    }

    /// The root posts the blocks for all others, a piece of each in each round, and they take theirs.
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

    /// Posts a piece of each block but one's own, one behind the other.
    #[inline]
    fn post_blocks(&mut self, cut: Cut, step: usize, given: &[u8]) -> Result<u64, Failure> {
        let part = cut.part(step);
        let piece = |rank| (rank * part.len(), &given[rank * cut.len..][..cut.len][part.clone()]);
        self.lines.post_parts(part.len() * self.ranks(), self.lines.others().map(piece))
    }
}
