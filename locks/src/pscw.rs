//! Post/start/complete/wait: matching of exposure and access epochs between groups of any size and order.

use crate::{At, Awaited, Error, Network, Rank, Wake};

/// One rank's handle on post/start/complete/wait (general active target synchronisation).
///
/// Each rank has two words for every other rank: the number of exposures that rank has opened to it (written by
/// `post`), and the number of accesses that rank has completed at it (written by `complete`). Both only count up. An
/// origin may therefore run ahead into its next access epoch, and groups may name their members in any order. A `post`
/// costs one 8-byte put per origin, a `complete` one per target; `start`, `wait` and `test` need no remote operation.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{Pscw, Network};
///
/// let net = Sim::new(3, Pscw::words(3), sim::once(|_, network| {
///     let mut pscw = Pscw::new(network.ranks(), 0);
///     if network.rank() == 0 {
///         pscw.post(network, &[1, 2])?; // my window is open to ranks 1 and 2
///         pscw.wait(network)
///     } else {
///         pscw.start(network, &[0])?; // puts and gets at rank 0 go here
///         pscw.complete(network)
///     }
/// }));
/// net.run_random(5).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pscw {
    base: usize,
    ranks: usize,
    peers: Box<[Counts]>,
    /// The origins of the exposure epoch.
    exposed: Group,
    /// The targets of the access epoch.
    accessed: Group,
}

/// The ranks that an epoch named, if it is open. The allocation is kept from one epoch to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Group {
    open: bool,
    ranks: Vec<Rank>,
}

impl Group {
    fn get(&self) -> Option<&[Rank]> {
        self.open.then_some(&self.ranks)
    }

    fn open(&mut self, ranks: &[Rank]) {
        self.ranks.clear();
        self.ranks.extend_from_slice(ranks);
        self.open = true;
    }

    fn close(&mut self) {
        self.ranks.clear();
        self.open = false;
    }
}

/// Epochs between this rank and one other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Counts {
    /// Exposures opened to the other rank; it has completed one less while one is open.
    posted: u64,
    /// Accesses started at the other rank.
    started: u64,
    /// The other rank is a target of the open access epoch.
    target: bool,
    /// The group being checked has named the other rank.
    named: bool,
}

impl Pscw {
    /// Words at each rank: `2 ranks`.
    pub const fn words(ranks: usize) -> usize {
        2 * ranks
    }

    /// Creates a handle for `ranks` ranks whose words begin at `base` and are initially 0.
    pub fn new(ranks: usize, base: usize) -> Self {
        Pscw {
            base,
            ranks,
            peers: vec![Counts::default(); ranks].into(),
            exposed: Group::default(),
            accessed: Group::default(),
        }
    }

    /// The targets of the access epoch; `None` if none is open.
    pub fn targets(&self) -> Option<&[Rank]> {
        self.accessed.get()
    }

    /// Returns whether `rank` is a target of the open access epoch.
    #[inline]
    pub fn is_target(&self, rank: Rank) -> bool {
        self.peers.get(rank).is_some_and(|peer| peer.target)
    }

    /// The origins of the exposure epoch; `None` if none is open.
    pub fn origins(&self) -> Option<&[Rank]> {
        self.exposed.get()
    }

    /// Opens an exposure epoch, in which `origins` may access this rank's window. Does not wait.
    ///
    /// # Errors
    /// [`Error::Epoch`] if an epoch is open or a rank is named twice, [`Error::NoSuchRank`], [`Error::Network`].
    pub fn post<N: Network>(&mut self, network: &N, origins: &[Rank]) -> Result<(), Error<N::Error>> {
        self.may_post(origins)?;
        for &origin in origins {
            let word = self.exposed_by(network.rank());
            network.notify(At { rank: origin, word }, self.peers[origin].posted + 1, Wake::Home)?;
        }
        self.posted_to(origins);
        Ok(())
    }

    /// [`post`](Self::post) without notifications, for origins that know they may [`start_unseen`](Self::start_unseen).
    /// Counts are absolute, so a later `post` makes up for it.
    ///
    /// # Errors
    /// [`Error::Epoch`], [`Error::NoSuchRank`].
    pub fn post_unseen<E>(&mut self, origins: &[Rank]) -> Result<(), Error<E>> {
        self.may_post(origins)?;
        self.posted_to(origins);
        Ok(())
    }

    fn posted_to(&mut self, origins: &[Rank]) {
        origins.iter().for_each(|&origin| self.peers[origin].posted += 1);
        self.exposed.open(origins);
    }

    fn may_post<E>(&mut self, origins: &[Rank]) -> Result<(), Error<E>> {
        if self.exposed.open {
            return Err(Error::Epoch("an exposure epoch is open; end it with wait or test first"));
        }
        self.check_group(origins)
    }

    /// Opens an access epoch to `targets`, once each of them has posted to this rank.
    ///
    /// # Errors
    /// The errors of [`post`](Self::post).
    pub fn start<N: Network>(&mut self, network: &N, targets: &[Rank]) -> Result<(), Error<N::Error>> {
        self.may_start(targets)?;
        for &target in targets {
            let nth = self.peers[target].started + 1;
            network.wait(self.exposed_by(target), Awaited::Rank(target), |posted| posted >= nth)?;
        }
        // Only after all targets have posted: a start that fails has started nothing.
        self.started_at(targets);
        Ok(())
    }

    /// [`start`](Self::start) without the check that targets have posted, which the caller knows.
    ///
    /// # Errors
    /// [`Error::Epoch`], [`Error::NoSuchRank`].
    pub fn start_unseen<E>(&mut self, targets: &[Rank]) -> Result<(), Error<E>> {
        self.may_start(targets)?;
        self.started_at(targets);
        Ok(())
    }

    fn started_at(&mut self, targets: &[Rank]) {
        for &target in targets {
            let peer = &mut self.peers[target];
            (peer.started, peer.target) = (peer.started + 1, true);
        }
        self.accessed.open(targets);
    }

    /// Returns whether [`start`](Self::start) would return without waiting.
    ///
    /// # Errors
    /// The errors of `start`.
    pub fn posted<N: Network>(&mut self, network: &N, targets: &[Rank]) -> Result<bool, Error<N::Error>> {
        self.may_start(targets)?;
        for &target in targets {
            let posted = network.wait(self.exposed_by(target), Awaited::Anyone, |_| true)?;
            if posted <= self.peers[target].started {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn may_start<E>(&mut self, targets: &[Rank]) -> Result<(), Error<E>> {
        if self.accessed.open {
            return Err(Error::Epoch("an access epoch is open; end it with complete first"));
        }
        self.check_group(targets)
    }

    /// Ends the access epoch: notifies each target, after all that was put there. Does not wait.
    ///
    /// # Errors
    /// [`Error::Epoch`] if none is open. [`Error::Network`] if a target could not be notified; all others are, and the
    /// epoch is over.
    pub fn complete<N: Network>(&mut self, network: &N) -> Result<(), Error<N::Error>> {
        let targets = self.accessed.get().ok_or(Error::Epoch("complete: no access epoch; start opens one"))?;
        let word = self.completed_by(network.rank());
        let mut failed = None;
        for &target in targets {
            if let Err(error) = network.notify(At { rank: target, word }, self.peers[target].started, Wake::Home) {
                failed.get_or_insert(error);
            }
            self.peers[target].target = false;
        }
        self.accessed.close();
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Ends the exposure epoch once every origin has completed.
    ///
    /// # Errors
    /// [`Error::Epoch`] if none is open; [`Error::Network`].
    pub fn wait<N: Network>(&mut self, network: &N) -> Result<(), Error<N::Error>> {
        let origins = self.exposed.get().ok_or(Error::Epoch(NO_EXPOSURE))?;
        for &origin in origins {
            let nth = self.peers[origin].posted;
            network.wait(self.completed_by(origin), Awaited::Rank(origin), |completed| completed >= nth)?;
        }
        self.exposed.close();
        Ok(())
    }

    /// [`wait`](Self::wait) if every origin has completed; otherwise returns false, and the epoch stays open.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn test<N: Network>(&mut self, network: &N) -> Result<bool, Error<N::Error>> {
        let origins = self.exposed.get().ok_or(Error::Epoch(NO_EXPOSURE))?;
        for &origin in origins {
            if !self.has_completed(network, origin)? {
                return Ok(false);
            }
        }
        self.exposed.close();
        Ok(true)
    }

    /// Returns whether `origin` has completed every access that this rank has exposed to it, and so may leave. Local.
    ///
    /// # Errors
    /// [`Error::Network`].
    ///
    /// # Examples
    /// ```
    /// use transom_locks::{Pscw, model::sim::{self, Sim}};
    /// let net = Sim::new(1, Pscw::words(1), sim::once(|_, network| {
    ///     let mut pscw = Pscw::new(1, 0);
    ///     pscw.post(network, &[0])?;
    ///     assert!(!pscw.has_completed(network, 0)?);
    ///     pscw.start(network, &[0])?;
    ///     pscw.complete(network)?;
    ///     assert!(pscw.has_completed(network, 0)?);
    ///     pscw.wait(network)
    /// }));
    /// net.run_random(1).unwrap();
    /// ```
    pub fn has_completed<N: Network>(&self, network: &N, origin: Rank) -> Result<bool, Error<N::Error>> {
        let completed = network.wait(self.completed_by(origin), Awaited::Anyone, |_| true)?;
        Ok(completed >= self.peers[origin].posted)
    }

    // The two words that a rank writes here are adjacent, so that few ranks write to one cache line.
    fn exposed_by(&self, target: Rank) -> usize {
        self.base + 2 * target
    }

    fn completed_by(&self, origin: Rank) -> usize {
        self.base + 2 * origin + 1
    }

    fn check_group<E>(&mut self, group: &[Rank]) -> Result<(), Error<E>> {
        let (ranks, peers) = (self.ranks, &mut self.peers);
        let mut name = |rank| peers.get_mut(rank).map(|peer: &mut Counts| std::mem::replace(&mut peer.named, true));
        let checked = group.iter().try_for_each(|&rank| match name(rank) {
            Some(false) => Ok(()),
            Some(true) => Err(Error::Epoch("a group names each rank once at most")),
            None => Err(Error::NoSuchRank { rank, ranks }),
        });
        for &rank in group {
            peers.get_mut(rank).into_iter().for_each(|peer| peer.named = false);
        }
        checked
    }
}

const NO_EXPOSURE: &str = "no exposure epoch is open; post opens one";
