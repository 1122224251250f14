//! Segment groups for zero-copy messages as datagrams: queue pairs whose receives are pieces of the program's memory,
//! and one queue pair that sends pieces to those of peers. All are created at first use.

use super::{ROUTE, SILENT, Silence};
use crate::VerbsError;
use crate::memory::Buffer;
use crate::rail::Rail;
use crate::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams, Registered};
use crate::wr::{Completions, Piece, Token};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pieces count as lost this long after a reset of a silent queue: their messages use another rail, or are copied.
const MUTED: Duration = Duration::from_secs(30);
/// Most open groups of a rank.
const MOST: usize = 16;
/// Most receives of a group.
const RECEIVES: u32 = 64;
/// Most pieces in flight to peers.
const SENDS: u32 = 256;

/// The segment groups of a rank.
#[derive(Default)]
pub(crate) struct Windows {
    open: Vec<Opened>,
    free: Vec<Receiver>,
    /// Buffer into which the adapter writes the GRH of each piece.
    route: Option<Arc<Buffer>>,
    sender: Option<Sender>,
    /// Tokens of sent pieces that have not been collected.
    gone: Vec<u64>,
    /// The end of the time in which pieces count as lost.
    muted: Option<Instant>,
}

/// An open group. Its memory stays registered.
struct Opened {
    receiver: Receiver,
    /// Bytes per piece.
    piece: usize,
    /// Index of the piece that each receive took, if any.
    came: Vec<Option<u8>>,
    _memory: Arc<Registered>,
}

struct Receiver {
    queue: Datagrams,
    received: Arc<CompletionQueue>,
    _route: Arc<Buffer>,
}

/// The queue pair that sends all pieces.
struct Sender {
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    /// Receiver of each piece in flight, and the tokens that its completion reports.
    under_way: VecDeque<(u32, Vec<u64>)>,
    depth: usize,
    /// Number of completions.
    completed: usize,
    silence: Silence,
}

impl Windows {
    /// Opens a group for datagrams into these pieces, which have equal lengths. Returns its queue pair and Q_Key;
    /// `None` if too many are open, or creation fails.
    pub fn open(&mut self, rail: &Rail, pieces: &[Piece], memory: &Arc<Registered>) -> Option<(u32, u32)> {
        if self.open.len() >= MOST {
            return None;
        }
        let piece = pieces.first()?.bytes as usize;
        let opened = self.receiver(rail).and_then(|receiver| {
            let random = |source| VerbsError::system("drawing random numbers", source);
            // Q_Keys with the highest bit set are reserved for privileged consumers.
            let key = u32::from_le_bytes(transom_launch::random().map_err(random)?) & 0x7fff_ffff;
            receiver.queue.take_only(key)?;
            let route = receiver._route.piece(0, ROUTE);
            let receives: Vec<_> = (0..).zip(pieces).map(|(at, piece)| (Token::new(0, at), [route, *piece])).collect();
            // SAFETY: the pieces stay registered as long as `memory`, which is kept until the adapter has none of the
            // receives any more. They belong to the engine, which waits for their data. The GRH of all receives goes to
            // one buffer that is never read.
            let posted = unsafe { receiver.queue.expect(&receives) };
            posted.map_err(|source| VerbsError::system("posting receives of a segment group", source))?;
            Ok((receiver, key))
        });
        match opened {
            Ok((receiver, key)) => {
                let number = receiver.queue.number();
                let came = vec![None; pieces.len()];
                self.open.push(Opened { receiver, piece, came, _memory: memory.clone() });
                Some((number, key))
            }
            Err(error) => {
                tracing::warn!(%error, "cannot open a segment group for datagrams");
                None
            }
        }
    }

    fn receiver(&mut self, rail: &Rail) -> Result<Receiver, VerbsError> {
        if let Some(free) = self.free.pop() {
            return Ok(free);
        }
        let route = match &self.route {
            Some(route) => route.clone(),
            None => self.route.insert(Arc::new(Buffer::new(&rail.domain, ROUTE, Access::Local)?)).clone(),
        };
        let received = Arc::new(CompletionQueue::new(rail.context(), RECEIVES)?);
        let capacity = Capacity { depth: 1, receives: RECEIVES, inline: 0, scatter: 2 };
        let queue = Datagrams::new(&rail.domain, &received, &received, capacity, &rail.near_end(0), 0)?;
        tracing::debug!(number = queue.number(), "queue pair of a segment group created");
        Ok(Receiver { queue, received, _route: route })
    }

    /// Closes the group of this queue pair; returns the index of the piece that each receive took. No datagram arrives
    /// there afterwards.
    pub fn close(&mut self, number: u32) -> Vec<Option<u8>> {
        let at = self.open.iter().position(|opened| opened.receiver.queue.number() == number);
        let Opened { receiver, piece, mut came, _memory } = self.open.swap_remove(at.expect("a group is closed once"));
        let mut completed = 0;
        let take = |completed: &mut usize, came: &mut Vec<Option<u8>>| {
            receiver.received.poll(&mut |completion| {
                *completed += 1;
                let whole = completion.result.is_ok() && completion.bytes == ROUTE + piece;
                let index = completion.value.filter(|_| whole).and_then(|value| u8::try_from(value).ok());
                if let Some(receive) = came.get_mut(completion.token.request() as usize) {
                    *receive = index;
                }
            })
        };
        let mut polled = take(&mut completed, &mut came);
        // A reset takes back the receives that are left.
        if polled.is_ok() && completed < came.len() {
            let ended = receiver.queue.open_again(|| polled = take(&mut completed, &mut came));
            if let Err(error) = ended {
                tracing::warn!(%error, "a segment group for datagrams is lost");
                return came;
            }
        }
        if let Err(error) = polled {
            tracing::warn!(%error, "a segment group for datagrams is lost");
            return came;
        }
        self.free.push(receiver);
        came
    }

    /// Sends a piece to a group of a peer. With a token, the completion of this piece and all earlier ones is reported.
    /// Returns false if the queue is full. A piece that the adapter refuses is lost, as on the network.
    ///
    /// # Safety
    /// The piece must stay registered until its completion is reported, or until sends to this peer were
    /// [cut](Self::cut).
    pub unsafe fn send(
        &mut self,
        rail: &Rail,
        (peer, handle): (u32, &AddressHandle),
        (number, key): (u32, u32),
        (index, piece): (u8, Piece),
        token: Option<u64>,
    ) -> bool {
        self.muted = self.muted.filter(|until| Instant::now() < *until);
        if self.muted.is_some() {
            self.lose(token);
            return true;
        }
        let sender = match &mut self.sender {
            Some(sender) => sender,
            None => match Sender::new(rail) {
                Ok(sender) => self.sender.insert(sender),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the queue pair that sends pieces");
                    self.lose(token);
                    return true;
                }
            },
        };
        if sender.under_way.len() == sender.depth {
            sender.look(&mut self.gone);
            if sender.under_way.len() == sender.depth {
                return false;
            }
        }
        let value = Some(index.into());
        // SAFETY: caller's contract.
        let sent = unsafe { sender.queue.send(Token::new(0, 0), piece, handle, number, key, value) };
        match sent {
            Ok(()) => sender.under_way.push_back((peer, token.into_iter().collect())),
            Err(error) => {
                tracing::warn!(peer, %error, "cannot send a piece now");
                self.lose(token);
            }
        }
        true
    }

    /// Counts a piece that cannot be sent as lost. Its token is reported with the last piece in flight, since the adapter may
    /// still read earlier pieces of the same memory.
    pub fn lose(&mut self, token: Option<u64>) {
        match self.sender.as_mut().and_then(|sender| sender.under_way.back_mut()) {
            Some((_, tokens)) => tokens.extend(token),
            None => self.gone.extend(token),
        }
    }

    /// Takes the tokens of the pieces sent since the last call.
    pub fn gone(&mut self) -> Vec<u64> {
        if let Some(sender) = self.sender.as_mut().filter(|sender| !sender.under_way.is_empty()) {
            sender.look(&mut self.gone);
        }
        std::mem::take(&mut self.gone)
    }

    /// Ends the sends in flight to a peer. Pieces in flight to other peers may be lost.
    pub fn cut(&mut self, peer: u32) {
        if let Some(sender) = &mut self.sender {
            let is_sent_to = |sender: &Sender| sender.under_way.iter().any(|(to, _)| *to == peer);
            if is_sent_to(sender) {
                sender.look(&mut self.gone);
            }
            if is_sent_to(sender) {
                self.end_sends();
            }
        }
    }

    /// Ends all sends in flight.
    fn end_sends(&mut self) {
        if let Some(sender) = &mut self.sender
            && !sender.begin_again(&mut self.gone)
        {
            // Destroying the queue pair ends whatever the adapter might still send.
            self.gone.extend(sender.under_way.drain(..).flat_map(|(_, tokens)| tokens));
            self.sender = None;
        }
    }

    /// Ends the sends in flight if the adapter has completed none of them for [`SILENT`].
    pub fn reset_if_silent(&mut self) {
        let Some(sender) = &mut self.sender else { return };
        sender.look(&mut self.gone);
        if sender.silence.lasts(!sender.under_way.is_empty(), sender.completed) {
            tracing::warn!(
                "the adapter has completed no piece of a message for {SILENT:?}; others are not sent for {MUTED:?}"
            );
            self.end_sends();
            self.muted = Some(Instant::now() + MUTED);
        }
    }
}

impl Sender {
    fn new(rail: &Rail) -> Result<Self, VerbsError> {
        let depth = SENDS.min(rail.context().limits.max_qp_wr.max(1) as u32);
        let sent = Arc::new(CompletionQueue::new(rail.context(), depth)?);
        let capacity = Capacity { depth, receives: 1, inline: 0, scatter: 1 };
        let queue = Datagrams::new(&rail.domain, &sent, &sent, capacity, &rail.near_end(0), 0)?;
        let depth = queue.depth().min(depth) as usize;
        Ok(Sender { queue, sent, under_way: VecDeque::new(), depth, completed: 0, silence: Silence::default() })
    }

    /// Takes completions.
    fn look(&mut self, gone: &mut Vec<u64>) {
        let (under_way, completed) = (&mut self.under_way, &mut self.completed);
        let mut failed = false;
        let polled = self.sent.poll(&mut |completion| {
            *completed += 1;
            gone.extend(under_way.pop_front().into_iter().flat_map(|(_, tokens)| tokens));
            failed |= completion.result.is_err();
        });
        if failed || polled.is_err() {
            // Soft-RoCE enters the error state while a link is down.
            self.begin_again(gone);
        }
    }

    /// Reopens the queue pair; pieces in flight are lost. Returns whether it can send again.
    fn begin_again(&mut self, gone: &mut Vec<u64>) -> bool {
        let opened = self.queue.open_again(|| _ = self.sent.poll(&mut |_| ()));
        let is_open = opened.inspect_err(|error| tracing::error!(%error, "a queue pair for datagrams is lost")).is_ok();
        if is_open {
            gone.extend(self.under_way.drain(..).flat_map(|(_, tokens)| tokens));
            self.silence = Silence::default();
        }
        is_open
    }
}
