//! Windows: queue pairs whose receives are pieces of a program's memory, and one by which pieces go to those of peers. They are made
//! when they are first needed.

use super::ROUTE;
use crate::VerbsError;
use crate::memory::Buffer;
use crate::rail::Rail;
use crate::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams, Registered};
use crate::wr::{Completions, Piece, Token};
use std::collections::VecDeque;
use std::sync::Arc;

/// Windows of a rank at once.
const MOST: usize = 16;
/// Receives of a window at most.
const RECEIVES: u32 = 64;
/// Pieces under way to peers.
const SENDS: u32 = 256;

/// Those of a rank.
#[derive(Default)]
pub(crate) struct Windows {
    open: Vec<Opened>,
    free: Vec<Receiver>,
    /// To where the adapter puts what comes before each piece.
    route: Option<Arc<Buffer>>,
    sender: Option<Sender>,
    /// Tokens of what has gone, and was not asked for.
    gone: Vec<u64>,
}

/// One that is open. Its memory stays registered.
struct Opened {
    receiver: Receiver,
    /// Bytes of a piece.
    piece: usize,
    /// Which piece each receive has taken.
    came: Vec<Option<u8>>,
    _memory: Arc<Registered>,
}

struct Receiver {
    queue: Datagrams,
    received: Arc<CompletionQueue>,
    _route: Arc<Buffer>,
}

/// By which all pieces go.
struct Sender {
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    /// To whom they are, and which are to be told.
    under_way: VecDeque<(u32, Option<u64>)>,
    depth: usize,
}

impl Windows {
    /// A window for datagrams of these pieces, all of one length: its queue pair and the key that they must bring. None if there are too
    /// many, or none can be made.
    pub fn open(&mut self, rail: &Rail, pieces: &[Piece], memory: &Arc<Registered>) -> Option<(u32, u32)> {
        if self.open.len() >= MOST {
            return None;
        }
        let piece = pieces.first()?.bytes as usize;
        let opened = self.receiver(rail).and_then(|receiver| {
            let random = |source| VerbsError::system("random numbers", source);
            // Keys whose highest bit is set are the system's own.
            let key = u32::from_le_bytes(transom_launch::random().map_err(random)?) & 0x7fff_ffff;
            receiver.queue.take_only(key)?;
            let route = receiver._route.piece(0, ROUTE);
            let receives: Vec<_> = (0..).zip(pieces).map(|(at, piece)| (Token::new(0, at), [route, *piece])).collect();
            // SAFETY: registered as long as `memory` is, which is kept until the adapter has none of them any more; they are the
            // engine's, which waits for what comes there. Before a piece all receives have the same place, which nobody reads.
            let posted = unsafe { receiver.queue.expect(&receives) };
            posted.map_err(|source| VerbsError::system("receives of a window", source))?;
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
                tracing::warn!(%error, "no window for datagrams");
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
        tracing::debug!(number = queue.number(), "a window for datagrams made");
        Ok(Receiver { queue, received, _route: route })
    }

    /// Ends the window of this queue pair: which piece each of its receives has taken. Nothing comes there any more.
    pub fn close(&mut self, number: u32) -> Vec<Option<u8>> {
        let at = self.open.iter().position(|opened| opened.receiver.queue.number() == number);
        let Opened { receiver, piece, mut came, _memory } = self.open.swap_remove(at.expect("a window ends once"));
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
        // The receives that are left are taken back, by a reset.
        if polled.is_ok() && completed < came.len() {
            let ended = receiver.queue.open_again(|| polled = take(&mut completed, &mut came));
            if let Err(error) = ended {
                tracing::warn!(%error, "a window for datagrams is lost");
                return came;
            }
        }
        if let Err(error) = polled {
            tracing::warn!(%error, "a window for datagrams is lost");
            return came;
        }
        self.free.push(receiver);
        came
    }

    /// Sends a piece to the window of a peer; with a token if it is to be told that it has gone, with all before it. False if there is no
    /// room now.
    ///
    /// # Safety
    /// The piece must stay registered until then, or until what goes to this peer was [cut](Self::cut).
    pub unsafe fn send(
        &mut self,
        rail: &Rail,
        (peer, handle): (u32, &AddressHandle),
        (number, key): (u32, u32),
        (index, piece): (u8, Piece),
        token: Option<u64>,
    ) -> bool {
        let sender = match &mut self.sender {
            Some(sender) => sender,
            None => match Sender::new(rail) {
                Ok(sender) => self.sender.insert(sender),
                Err(error) => {
                    tracing::warn!(%error, "no queue pair for pieces");
                    return false;
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
        // SAFETY: by the caller's word.
        let sent = unsafe { sender.queue.send(Token::new(0, 0), piece, handle, number, key, value) };
        match sent {
            Ok(()) => sender.under_way.push_back((peer, token)),
            Err(ref error) => tracing::warn!(peer, %error, "a piece could not be sent now"),
        }
        sent.is_ok()
    }

    /// The tokens of what has gone since.
    pub fn gone(&mut self) -> Vec<u64> {
        if let Some(sender) = self.sender.as_mut().filter(|sender| !sender.under_way.is_empty()) {
            sender.look(&mut self.gone);
        }
        std::mem::take(&mut self.gone)
    }

    /// Ends what goes to a peer. What goes to others may be lost.
    pub fn cut(&mut self, peer: u32) {
        if let Some(sender) = &mut self.sender {
            let is_sent_to = |sender: &Sender| sender.under_way.iter().any(|(to, _)| *to == peer);
            if is_sent_to(sender) {
                sender.look(&mut self.gone);
            }
            if is_sent_to(sender) && !sender.begin_again(&mut self.gone) {
                // With its queue pair goes what the adapter might still do.
                self.gone.extend(sender.under_way.drain(..).filter_map(|(_, token)| token));
                self.sender = None;
            }
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
        Ok(Sender { queue, sent, under_way: VecDeque::new(), depth })
    }

    /// Takes what has gone.
    fn look(&mut self, gone: &mut Vec<u64>) {
        let under_way = &mut self.under_way;
        let mut failed = false;
        let polled = self.sent.poll(&mut |completion| {
            gone.extend(under_way.pop_front().and_then(|(_, token)| token));
            failed |= completion.result.is_err();
        });
        if failed || polled.is_err() {
            // As Soft-RoCE does where a link is down.
            self.begin_again(gone);
        }
    }

    /// What was under way is lost; whether anything can go again.
    fn begin_again(&mut self, gone: &mut Vec<u64>) -> bool {
        let opened = self.queue.open_again(|| _ = self.sent.poll(&mut |_| ()));
        let is_open = opened.inspect_err(|error| tracing::error!(%error, "a queue pair for datagrams is lost")).is_ok();
        if is_open {
            gone.extend(self.under_way.drain(..).filter_map(|(_, token)| token));
        }
        is_open
    }
}
