//! The world: all ranks of a job, or a team of them. All other objects of the library are made from it.

use crate::aliases::{GlobalArray, GlobalFlags, GlobalMutex, GlobalRwLock, Window};
use crate::collective::Collectives;
use crate::messages::{Meeting, Space};
use crate::provider::{self, Provider};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use transom_collective::Hosts;
use transom_locks::Rank;
use transom_windows::array::{Layout, LayoutError};
use transom_windows::{Buffer, Distribution, Element, Error, FabricError, Flavor, Owner};

/// The ranks of a job, or of a team, as seen by one of them. The rank leaves the job when the world and the windows
/// made from it are dropped.
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// println!("rank {} of {}", world.rank(), world.size());
/// # Ok::<(), transom::Error>(())
/// ```
pub struct World {
    /// Declared, and so dropped, before the messages that carry them.
    collectives: Collectives,
    /// Declared before `fabric`, so that messages end before the rank leaves.
    messages: Space,
    /// Provider among these ranks. A team has none until a window or collective needs it.
    fabric: OnceLock<Provider>,
    windows: AtomicU32,
}

impl World {
    pub(crate) fn new(fabric: Provider) -> Self {
        let messages = Space::of_job(fabric.clone());
        let (collectives, fabric) = (Collectives::new(None), OnceLock::from(fabric));
        World { collectives, messages, fabric, windows: AtomicU32::new(0) }
    }

    /// Makes the world of a team.
    fn of_team(&self, messages: Space) -> World {
        let collectives = Collectives::new(Some(&self.collectives));
        World { collectives, messages, fabric: OnceLock::new(), windows: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) fn collectives(&self) -> &Collectives {
        &self.collectives
    }

    #[inline]
    pub(crate) fn space(&self) -> &Space {
        &self.messages
    }

    /// Provider among these ranks only, if it has been made.
    #[inline]
    pub(crate) fn fabric_of_all(&self) -> &OnceLock<Provider> {
        &self.fabric
    }

    /// Returns the provider of the job. A team returns the same provider, whose ranks are numbered as in the job.
    pub fn provider(&self) -> &Provider {
        self.messages.root()
    }

    /// Returns the number of this rank, from 0.
    #[inline]
    pub fn rank(&self) -> Rank {
        self.messages.rank()
    }

    /// Returns the number of ranks.
    #[inline]
    pub fn size(&self) -> usize {
        self.messages.size()
    }

    /// Returns the placement of ranks on hosts.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let host = world.hosts().host(world.rank());
    ///     let neighbours = world.split(Some(host as u64), 0)?.expect("everyone is on a host");
    ///     assert_eq!(neighbours.size(), 3); // all threads share a host
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn hosts(&self) -> Hosts {
        let hosts = provider::hosts(self.provider());
        let of_members = |hosts: Vec<u32>| self.messages.members().into_iter().map(|rank| hosts[rank]).collect();
        Hosts::of(&hosts.map_or_else(|| vec![0; self.size()], of_members))
    }

    /// Makes a window that exposes `len` zeroed elements of this rank. Collective; `len` may differ from rank to rank.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Mismatch`], [`Error::Fabric`]; see [`windows::Window::new`](transom_windows::Window::new).
    ///
    /// # Examples
    /// ```
    /// let totals = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let mut window = world.allocate::<u64>(1)?;
    ///     window.lock_shared(0)?.fetch_and_op(0, transom::Op::Sum, 1 + world.rank() as u64)?;
    ///     window.fence()?;
    ///     window.lock_shared(0)?.get_one(0)
    /// })?;
    /// assert!(totals.into_iter().all(|total| total.unwrap() == 1 + 2 + 3));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn allocate<T: Element>(&self, len: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Allocate { len }, 0)
    }

    /// Makes a window as [`allocate`](Self::allocate), with `signals` signal words at this rank for
    /// [`put_signal`](transom_windows::Target::put_signal). Collective.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut window = world.allocate_with_signals::<u64>(10, 1)?;
    ///     let other = 1 - world.rank();
    ///     let epoch = window.lock_all()?;
    ///     epoch.target(other)?.put_signal(0, &[42; 10], 0, 1)?; // data, then the signal
    ///     epoch.signals().wait_until(0, |arrived| arrived == 1)?;
    ///     assert_eq!(epoch.local().get(9)?, 42);
    ///     epoch.unlock()
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn allocate_with_signals<T: Element>(&self, len: usize, signals: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Allocate { len }, signals)
    }

    /// Makes a window of `len` zeroed elements at this rank in shared memory. Collective. Every rank reaches all parts
    /// by loads and stores: [`Local::of`](transom_windows::Local::of).
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate); [`Error::NotShared`] if some ranks do not share memory.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut window = world.allocate_shared::<u32>(4)?;
    ///     let next = (world.rank() + 1) % world.size();
    ///     window.local().of(next)?.set(0, 5)?; // no epoch, and no call by the neighbour
    ///     window.fence()?;
    ///     assert_eq!(window.local().get(0)?, 5);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn allocate_shared<T: Element>(&self, len: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Shared { len }, 0)
    }

    /// Makes a window on elements of the program, which [`free`](transom_windows::Window::free) gives back. Collective.
    /// See [`Flavor::Create`] for the limits of such windows.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = vec![world.rank(); 10];
    ///     let mut window = world.create(mine)?;
    ///     assert_eq!(window.lock_shared(1)?.get_one(9)?, 1);
    ///     let mine = window.free()?; // once no rank can access the window any more
    ///     assert_eq!(mine, [world.rank(); 10]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn create<T: Element>(&self, elements: Vec<T>) -> Result<Window<T>, Error> {
        self.window(Flavor::Create(elements), 0)
    }

    /// Makes a window as [`create`](Self::create) on elements of any [`Owner`](transom_windows::Owner), with `signals`
    /// signal words. Collective. [`free_as`](transom_windows::Window::free_as) gives the owner back. Some ranks may
    /// call `create` and others this for one window.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut mine = world.buffer::<u64>(100)?;
    ///     mine.fill(world.rank() as u64);
    ///     let mut window = world.create_on(mine, 0)?;
    ///     assert_eq!(window.lock_shared(1)?.get_one(99)?, 1);
    ///     let mine: transom::Buffer<u64> = window.free_as()?;
    ///     assert_eq!(mine[99], world.rank() as u64);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn create_on<O: Owner>(&self, owner: O, signals: usize) -> Result<Window<O::Element>, Error> {
        self.make(|fabric, number| Window::on(fabric, number, owner, signals))
    }

    /// Makes a window without elements, to which each rank can [`attach`](transom_windows::Window::attach) up to
    /// `slots` pieces of memory at a time. Collective.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut names = world.allocate::<transom::Address>(1)?; // where other ranks find the attached memory
    ///     let mut window = world.dynamic::<u64>(4)?;
    ///     let address = window.attach(1000)?;
    ///     names.local().set(0, address)?;
    ///     names.fence()?;
    ///
    ///     let theirs = names.lock_shared(1 - world.rank())?.get_one(0)?;
    ///     let memory = window.reach(&theirs)?;
    ///     window.lock_exclusive(theirs.rank())?.attached(&memory)?.put(999, &[42])?;
    ///     window.fence()?;
    ///     assert_eq!(window.local().attached(&address)?.get(999)?, 42);
    ///     window.detach(&address)
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn dynamic<T: Element>(&self, slots: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Dynamic { slots }, 0)
    }

    /// Makes a window of any flavour, with `signals` signal words at this rank. Collective. The calls above are short
    /// forms of this one.
    ///
    /// # Errors
    /// See [`windows::Window::new`](transom_windows::Window::new).
    ///
    /// # Examples
    /// ```
    /// use transom::Flavor;
    /// let world = transom::init()?;
    /// let mut window = world.window(Flavor::Create(vec![0.0; 100]), 1)?;
    /// window.lock_shared(0)?.put_signal(7, &[1.5], 0, 1)?;
    /// assert_eq!(window.free()?[7], 1.5);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn window<T: Element>(&self, flavor: Flavor<T>, signals: usize) -> Result<Window<T>, Error> {
        self.make(|fabric, number| Window::new(fabric, number, flavor, signals))
    }

    /// Makes an array of zeroed elements, distributed over a grid of ranks. Collective; all ranks pass the same
    /// arguments. The grid is as near to a square as the number of ranks allows ([`Layout::new`]);
    /// [`array_on`](Self::array_on) takes a layout of the program.
    ///
    /// # Errors
    /// - [`Error::Array`] if ranks pass different arguments.
    /// - [`Error::Layout`]; [`Error::Fabric`].
    ///
    /// # Examples
    /// ```
    /// use transom::Distribution;
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut array = world.array::<u64, 1>([100], Distribution::Block)?;
    ///     array.lock_all()?.fetch_and_op(70, transom::Op::Sum, 1)?; // any rank may own the element
    ///     assert_eq!(array.fence()?.get_one(70)?, 3);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn array<T: Element, const D: usize>(
        &self,
        shape: [usize; D],
        distribution: Distribution<D>,
    ) -> Result<GlobalArray<T, D>, Error> {
        self.agreed_array(Layout::new(shape, distribution, self.size()))
    }

    /// Makes an array of zeroed elements with a layout of the program. Collective; all ranks pass the same layout.
    ///
    /// # Errors
    /// The errors of [`array`](Self::array); [`Error::Layout`] also if the layout is for another number of ranks than
    /// the world has.
    ///
    /// # Examples
    /// ```
    /// use transom::array::{Distribution, Layout};
    /// transom::threads(6, |world| -> Result<(), transom::Error> {
    ///     let rows = Layout::on_grid([60, 8], Distribution::Block, [world.size(), 1])?; // whole rows
    ///     let mut array = world.array_on::<f32, 2>(rows)?;
    ///     array.lock_exclusive(2)?.put([25..27, 0..8], &[1.0; 16])?;
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn array_on<T: Element, const D: usize>(&self, layout: Layout<D>) -> Result<GlobalArray<T, D>, Error> {
        self.agreed_array(Ok(layout))
    }

    fn agreed_array<T: Element, const D: usize>(
        &self,
        layout: Result<Layout<D>, LayoutError>,
    ) -> Result<GlobalArray<T, D>, Error> {
        self.make(|fabric, number| GlobalArray::new(fabric, number, layout))
    }

    /// Makes a window or value, given its provider and number. All ranks make windows and values together, so their
    /// counts agree.
    fn make<R>(&self, make: impl FnOnce(&Provider, u32) -> Result<R, Error>) -> Result<R, Error> {
        let fabric = self.fabric()?;
        let number = self.windows.fetch_add(1, Ordering::Relaxed);
        let _making = self.collectives.making(&self.messages, number);
        make(fabric, number)
    }

    /// Counts the window or value of this number without making it; returns false if this rank has counted another.
    pub(crate) fn skips(&self, number: u32) -> bool {
        self.windows.compare_exchange(number, number.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes `len` values with consecutive numbers, given the first. A failed call takes one number, as ranks may pass
    /// different lengths.
    fn many<R>(&self, len: usize, make: impl FnOnce(&Provider, u32) -> Result<R, Error>) -> Result<R, Error> {
        let made = self.make(make)?;
        self.windows.fetch_add(len.saturating_sub(1) as u32, Ordering::Relaxed);
        Ok(made)
    }

    /// Makes `len` flags that every rank may set, clear and wait for. Collective; all ranks pass the same length.
    ///
    /// # Errors
    /// See [`windows::GlobalFlags::new`](transom_windows::GlobalFlags::new).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let ready = world.flags(1)?;
    ///     if world.rank() == 0 {
    ///         ready.set(0)?;
    ///     }
    ///     ready.wait(0)
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn flags(&self, len: usize) -> Result<GlobalFlags, Error> {
        self.make(|fabric, number| GlobalFlags::new(fabric, number, len))
    }

    /// Makes a value in the memory of the rank `home`, for one holder at a time. Collective. Every rank passes a value;
    /// the value of the home rank is the initial one.
    ///
    /// # Errors
    /// [`Error::Value`], [`Error::Size`], [`Error::Mismatch`], [`Error::Collective`]; see
    /// [`windows::GlobalRwLock::new`](transom_windows::GlobalRwLock::new).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let sum = world.mutex(0, 10)?; // at rank 0
    ///     *sum.lock()? += 1 + world.rank() as u64;
    ///     world.barrier()?;
    ///     Ok(*sum.lock()?)
    /// })?;
    /// assert!(sums.into_iter().all(|sum| sum.unwrap() == 10 + 1 + 2 + 3));
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn mutex<T: Element>(&self, home: Rank, value: T) -> Result<GlobalMutex<T>, Error> {
        self.make(|fabric, number| GlobalMutex::new(fabric, number, home, value))
    }

    /// Makes an array of mutexes in one piece of memory, for little more than the cost of one. Collective. The home of
    /// value `i` is the rank `i % size`, which calls `value(i)` for the initial value.
    ///
    /// # Errors
    /// - [`Error::Mismatch`] if ranks pass different lengths.
    /// - [`Error::Size`] if `len` is too large.
    /// - [`Error::Collective`].
    ///
    /// See also [`windows::GlobalRwLock::many`](transom_windows::GlobalRwLock::many).
    ///
    /// # Examples
    /// ```
    /// use transom::GlobalMutex;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let buckets: Vec<GlobalMutex<u64>> = world.mutexes(1000, |_| 0)?;
    ///     for word in ["put", "get", "put"] {
    ///         *buckets[word.bytes().map(usize::from).sum::<usize>() % 1000].lock()? += 1;
    ///     }
    ///     world.barrier()?;
    ///     let put = "put".bytes().map(usize::from).sum::<usize>();
    ///     assert_eq!(*buckets[put % 1000].lock()?, 2 * 4);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn mutexes<T: Element>(&self, len: usize, value: impl FnMut(usize) -> T) -> Result<Vec<GlobalMutex<T>>, Error> {
        self.many(len, |fabric, first| GlobalMutex::many(fabric, first, len, value))
    }

    /// Makes an array of values as [`mutexes`](Self::mutexes), each for one writer or many readers.
    ///
    /// # Errors
    /// The errors of [`mutexes`](Self::mutexes).
    ///
    /// # Examples
    /// ```
    /// let world = transom::init()?;
    /// let bounds = world.rw_locks(100, |i| [0.0, i as f64])?;
    /// assert_eq!(*bounds[7].read()?, [0.0, 7.0]);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn rw_locks<T: Element>(
        &self,
        len: usize,
        value: impl FnMut(usize) -> T,
    ) -> Result<Vec<GlobalRwLock<T>>, Error> {
        self.many(len, |fabric, first| GlobalRwLock::many(fabric, first, len, value))
    }

    /// Makes a value as [`mutex`](Self::mutex), for one writer or many readers.
    ///
    /// # Errors
    /// The errors of [`mutex`](Self::mutex).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let bounds = world.rw_lock(2, [0.0, 1.0])?; // at rank 2
    ///     let guard = bounds.read()?;
    ///     world.barrier()?; // all ranks hold it now
    ///     assert_eq!(*guard, [0.0, 1.0]);
    ///     guard.unlock()
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn rw_lock<T: Element>(&self, home: Rank, value: T) -> Result<GlobalRwLock<T>, Error> {
        self.make(|fabric, number| GlobalRwLock::new(fabric, number, home, value))
    }

    /// Makes a team of the ranks that name the same colour, numbered by `key`, then by rank; `None` at ranks that name
    /// no colour. Collective. A team is a world of its own: its windows, barriers and errors cover its members only.
    ///
    /// Ranks call `split` in the same order as their other collectives of this world. The call costs one all-gather of
    /// 32 bytes from each rank by messages, and a list of the members. The first window, or collective through shared
    /// memory, makes what else the team needs: that call takes some rounds of messages more.
    ///
    /// # Errors
    /// [`Error::Collective`]:
    /// - A rank has died or left.
    /// - A rank calls another collective instead, or makes a window or value.
    /// - Another thread of this rank is in a collective of this world.
    /// - Collectives of this world have failed before, or there are no messages.
    /// - No member has a number left to lead the team with. A job has 613,566,756 numbers, divided evenly among the
    ///   ranks.
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let row = world.rank() / 2; // two teams of two
    ///     let team = world.split(Some(row as u64), 0)?.expect("everyone names a colour");
    ///     assert_eq!((team.rank(), team.size()), (world.rank() % 2, 2));
    ///     let mut window = team.allocate::<u64>(1)?; // a window of the team
    ///     window.lock_exclusive(1)?.put(0, &[row as u64])?;
    ///     Ok(team.barrier()?)
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<World>, Error> {
        let failed = |source| Error::Collective { call: "split", source };
        let offer = self.messages.offer();
        let mine = [u64::from(colour.is_some()), colour.unwrap_or(0), key, u64::from(offer)];
        let wishes = self.gather_wishes(mine).map_err(failed)?;
        if colour.is_none() {
            self.messages.withdraw(offer);
            return Ok(None);
        }
        let mut members: Vec<Rank> = (0..self.size()).filter(|&rank| wishes[rank][..2] == mine[..2]).collect();
        members.sort_by_key(|&rank| (wishes[rank][2], rank));
        let offers: Vec<_> = members.iter().map(|&rank| wishes[rank][3] as u32).collect();
        let messages = self.messages.of_team(&members, &offers).map_err(failed)?;
        Ok(Some(self.of_team(messages)))
    }

    /// Makes a team of the listed ranks, numbered in the order of the list, which includes this rank. All members call
    /// it with the same list; other ranks need not call, and may have died. The team is a world of its own, as those of
    /// [`split`](Self::split).
    ///
    /// Costs two exchanges of messages with the first member, and a list of the members. As after a
    /// [`split`](Self::split), the first call that needs more of the team makes it.
    ///
    /// # Errors
    /// [`Error::Collective`]:
    /// - At once, if the list names a rank that does not exist, a rank twice, or not this rank.
    /// - A member has died or left.
    /// - The team cannot be made at one of the members.
    ///
    /// Unless a member dies during the call, the error occurs at all members or at none. Members with different lists,
    /// or with the same ranks in another order, wait for each other; the report of a long wait (`TRANSOM_WAIT_REPORT`)
    /// shows the lists.
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     if world.rank() == 1 {
    ///         return Ok(()); // it has left, or died
    ///     }
    ///     let team = world.team(&[3, 0, 2])?;
    ///     assert_eq!(team.all_gather(&[world.rank()])?, [3, 0, 2]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn team(&self, ranks: &[Rank]) -> Result<World, Error> {
        let failed = |source| Error::Collective { call: "team", source };
        let misuse = |why| failed(FabricError::Misuse { why });
        self.check_team(ranks).map_err(misuse)?;
        let comm = self.messages.comm().map_err(|error| misuse(error.to_string()))?;
        let mut meeting = Meeting::new(comm, ranks);
        let said = meeting.all_gather(&self.messages.offer().to_le_bytes());
        let messages = said.and_then(|said| {
            let offers = said.iter().zip(ranks).map(|(said, rank)| match said[..].try_into() {
                Ok(offer) => Ok(u32::from_le_bytes(offer)),
                Err(_) => {
                    let why = format!("rank {rank} offers a team number of {} bytes, expected 4", said.len());
                    Err(FabricError::Corrupt { why })
                }
            });
            self.messages.of_team(ranks, &offers.collect::<Result<Vec<_>, _>>()?)
        });
        Ok(self.of_team(meeting.end(messages).map_err(failed)?))
    }

    fn check_team(&self, ranks: &[Rank]) -> Result<(), String> {
        let (me, size) = (self.rank(), self.size());
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        let why = match (sorted.last(), twice) {
            (Some(&rank), _) if rank >= size => format!("there is no rank {rank}: ranks are 0 to {}", size - 1),
            (_, Some(pair)) => format!("rank {} is listed twice", pair[0]),
            _ if !ranks.contains(&me) => format!("rank {me} is not in the list"),
            _ => return Ok(()),
        };
        Err(format!("of ranks {ranks:?}: {why}"))
    }

    /// Allocates `len` zeroed elements of this rank in memory that suits puts and gets best: see [`Buffer`]. Not
    /// collective.
    ///
    /// # Errors
    /// [`Error::Provider`] if there is no memory.
    ///
    /// # Examples
    /// ```
    /// let world = transom::init()?;
    /// let mut window = world.allocate::<f64>(100_000)?;
    /// let mut buffer = world.buffer::<f64>(100_000)?;
    /// buffer.fill(0.5);
    /// window.lock_shared(0)?.put(0, &buffer)?; // between hosts the adapter reads it in place
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn buffer<T: Element>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Ok(Buffer::new(self.provider(), len)?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // No other rank waits for a rank that is alone.
        if self.size() > 1 {
            self.collectives.leave(&self.messages);
        }
    }
}
