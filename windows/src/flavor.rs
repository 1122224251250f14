//! Creation and freeing of windows, and the memory that they expose.

use crate::core::Core;
use crate::segment::{Segment, SegmentError, Size};
use crate::updates::Gates;
use crate::user_memory::{Lent, Owner, UserBuffer, UserMemory};
use crate::window::Window;
use crate::words::{self, Purpose, Words};
use crate::{Error, Fabric, FabricError};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::sync::Arc;
use transom_locks::{At, Barrier, Network, PassiveLock, Pscw, Wake};

/// The memory that a window exposes at a rank. All ranks pass the same flavour; sizes may differ, and be zero.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.create(vec![1.0, 2.0])?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// use transom_windows::{Flavor, Window};
/// let mut window = Window::new(&fabric, 0, Flavor::Create(vec![1.0, 2.0]), 0)?;
/// assert_eq!(window.lock_shared(0)?.get_one(1)?, 2.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Flavor<T> {
    /// Zeroed elements that the window allocates.
    Allocate {
        /// The number of elements.
        len: usize,
    },
    /// `Allocate` on ranks that all share memory, so that each rank accesses every part by its own loads and stores:
    /// [`Local::of`](crate::Local::of). An error if some ranks do not share memory.
    Shared {
        /// The number of elements.
        len: usize,
    },
    /// Elements that the program has already; [`Window::free`] returns them. If the program drops the window instead,
    /// their memory is leaked, since other ranks may still be writing to it. If the window cannot be made, they are
    /// dropped.
    ///
    /// On one machine the kernel copies them between processes (process_vm_readv and process_vm_writev, one system call
    /// per put or get). It cannot do atomics: accumulates, fetch_and_op and compare_and_swap read, change and write
    /// back, one call at a time. Signals and locks are as in other windows.
    Create(Vec<T>),
    /// No elements yet, and slots to attach memory later: [`Window::attach`].
    Dynamic {
        /// The most pieces attached at one time, with 128 bytes for each.
        slots: usize,
    },
}

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Collective: creates a window that exposes `len` zeroed elements at this rank; `len` may differ between ranks.
    /// `id` names the window in errors.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn allocate(fabric: &F, id: u32, len: usize) -> Result<Self, Error> {
        Self::new(fabric, id, Flavor::Allocate { len }, 0)
    }

    /// Collective: creates a window of a flavour, with `signals` signal words at this rank, 8 bytes each, for
    /// [`put_signal`](crate::Target::put_signal).
    ///
    /// # Errors
    /// [`Error::Size`] if `T` has no size or the number of bytes overflows; [`Error::Mismatch`] if ranks pass different
    /// flavours or element types; [`Error::Lock`] for more ranks than a lock supports; [`Error::NotShared`];
    /// [`Error::Fabric`] if no memory is available, here or at another rank.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.allocate_with_signals::<f64>(64, 2)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Flavor, Window};
    /// let mut window = Window::<f64, _>::new(&fabric, 0, Flavor::Allocate { len: 64 }, 2)?;
    /// window.lock_all()?.target(0)?.put_signal(3, &[1.5], 1, 1)?; // data, then its notification
    /// assert_eq!(window.signals().wait_until(1, |news| news == 1)?, 1);
    /// assert_eq!(window.local().get(3)?, 1.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(fabric: &F, id: u32, flavor: Flavor<T>, signals: usize) -> Result<Self, Error> {
        let (kind, len, slots, mine) = match flavor {
            Flavor::Allocate { len } => (0, len, 0, None),
            Flavor::Shared { len } => (SHARED, len, 0, None),
            Flavor::Create(elements) => (CREATE, elements.len(), 0, Some(UserBuffer::new(elements))),
            Flavor::Dynamic { slots } => (3, 0, slots, None),
        };
        Self::make(fabric, id, kind, len, slots, signals, mine)
    }

    /// Collective: creates a window on elements of any owner: a mapped file, a [`Buffer`](crate::Buffer), memory of
    /// another library. Other ranks may call [`new`](Self::new) with [`Flavor::Create`] instead.
    /// [`free_as`](Self::free_as) returns the owner.
    ///
    /// # Errors
    /// The errors of `new`. The owner is dropped then.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.create_on(world.buffer::<f64>(100)?, 0)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Buffer, Window};
    /// let mut buffer = Buffer::<f64>::new(&fabric, 100)?;
    /// buffer[3] = 1.5;
    /// let mut window = Window::on(&fabric, 0, buffer, 0)?;
    /// assert_eq!(window.lock_shared(0)?.get_one(3)?, 1.5);
    /// let buffer: Buffer<f64> = window.free_as()?;
    /// # assert_eq!(buffer[3], 1.5);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn on(fabric: &F, id: u32, owner: impl Owner<Element = T>, signals: usize) -> Result<Self, Error> {
        let (user, memory, len) = UserBuffer::of(owner);
        Self::make(fabric, id, CREATE, len, 0, signals, Some((user, memory)))
    }

    fn make(
        fabric: &F,
        id: u32,
        kind: u64,
        len: usize,
        slots: usize,
        signals: usize,
        mine: Option<(UserBuffer<T>, UserMemory)>,
    ) -> Result<Self, Error> {
        let (rank, ranks, element) = (fabric.rank(), fabric.size(), size_of::<T>());
        let bytes = match element {
            0 => Err("its elements have no size"),
            _ if align_of::<T>() > 64 => Err("its elements are aligned to more than a cache line"),
            _ => len.checked_mul(element).ok_or("too many bytes"),
        };
        let size = bytes.map(|bytes| Size { bytes, own: mine.is_some(), signals, slots });
        let (user, own) = mine.unzip();
        // All ranks must make the same window, with the same element type.
        let words = Words::new(ranks);
        let type_name = words::element::<T>();
        let what = (&*type_name, kind);
        let data = match Segment::allocate(fabric, Purpose::Window, id, what, words.all(), size, own) {
            Ok(data) => Arc::new(data),
            Err(error) => {
                // The elements can be returned, unless other ranks may have the window and write to it.
                if !matches!(error, SegmentError::Late(_)) {
                    drop(user.map(UserBuffer::take_back));
                }
                return Err(error.of(id, rank, len, element));
            }
        };
        let apart = data.remotes.iter().position(|remote| !fabric.is_shared(remote));
        if let Some(rank) = apart.filter(|_| kind == SHARED) {
            return Err(Error::NotShared { window: id, rank });
        }
        let lock = PassiveLock::new(data.clone(), 0).map_err(|source| Error::Lock { window: id, rank, source })?;
        tracing::debug!(window = id, rank, len, element, signals, slots, kind, "window created");
        let barrier = Barrier::new(ranks, words.barrier());
        let pscw = Pscw::new(ranks, words.pscw());
        let attached = std::iter::repeat_with(|| None).take(slots).collect();
        let core = Core {
            id,
            element: size_of::<T>(),
            gates: Gates::new(&data),
            data,
            attached,
            numbers: 0,
            checks: Default::default(),
        };
        Ok(Window { core, lock, barrier, pscw, user, element: PhantomData })
    }

    /// Collective: ends the window once every rank has called, and returns the elements of [`Flavor::Create`] as other
    /// ranks left them; an empty vector for other flavours. Costs ceil(log2 ranks) notifications, and 1 fetch-and-add
    /// per rank to return elements.
    ///
    /// # Errors
    /// [`Error::Sync`] if a rank died or left, or called `fence` instead; the elements are leaked then.
    ///
    /// # Examples
    /// See [`Flavor::Create`].
    pub fn free(self) -> Result<Vec<T>, Error> {
        Ok(match self.end()? {
            Some(Lent::Vec(elements)) => elements,
            _ => Vec::new(),
        })
    }

    /// [`free`](Self::free) of a window that was made [`on`](Self::on) an owner: returns the owner.
    ///
    /// # Errors
    /// The errors of `free`; [`Error::Fabric`] with [`FabricError::Misuse`] if the window was made on another type,
    /// whose value is dropped.
    ///
    /// # Examples
    /// See [`Owner`].
    pub fn free_as<O: Owner<Element = T>>(self) -> Result<O, Error> {
        let (window, rank) = (self.id(), self.rank());
        match self.end()? {
            Some(Lent::Owner(owner)) => owner.downcast().map(|owner| *owner).ok(),
            _ => None,
        }
        .ok_or_else(|| {
            let why = format!("the window was not made on a {}", std::any::type_name::<O>());
            Error::Fabric { window, rank, source: FabricError::Misuse { why } }
        })
    }

    /// Ends the window; returns the memory that was lent to it.
    fn end(mut self) -> Result<Option<Lent<T>>, Error> {
        let (data, word, ranks) = (self.core.data.clone(), Words::new(self.ranks()).freed(), self.ranks());
        let told = match self.user {
            None => Ok(()),
            Some(_) => (0..ranks).try_for_each(|rank| {
                data.start_add(At { rank, word }, 1, Wake::Nobody).and_then(|added| data.finish(added)).map(drop)
            }),
        };
        self.fence()?;
        let Some(user) = self.user.take() else { return Ok(None) };
        // The barrier alone does not prove that all ranks have stopped writing: a rank may have passed it by a fence.
        let source = match told.and_then(|()| data.fabric.word(&data.region, 8 * word)) {
            Ok(freed) if freed == ranks as u64 => {
                // The region goes first, and with it every access from this rank.
                drop(self);
                if let Some(data) = Arc::into_inner(data) {
                    data.withdraw();
                }
                return Ok(Some(user.take_back()));
            }
            Ok(_) => transom_locks::Error::Epoch("a rank called fence instead, and keeps its window"),
            Err(source) => source.into(),
        };
        Err(self.core.sync_error("free", source))
    }
}

const SHARED: u64 = 1;
const CREATE: u64 = 2;
