//! Executes a peer's requests on memory of this rank, with the verbs of shared memory. All atomics on a word are therefore
//! atomics of this host's processors.

use crate::carrier::Outgoing;
use crate::frame::{At, Malformed, Refusal, Reply, Request};
use crate::regions::Regions;
use std::sync::Arc;
use transom_shm_loopback::{Loopback, View};
use transom_windows::{Fabric, FabricError};

/// Executor of requests.
pub struct Executor {
    memory: Loopback,
    regions: Arc<Regions>,
}

impl Executor {
    pub fn new(memory: Loopback, regions: Arc<Regions>) -> Executor {
        Executor { memory, regions }
    }

    /// Executes the request in `frame`, and queues its reply.
    ///
    /// # Errors
    /// [`Malformed`]: the frame is no request, and the rest of the connection has no meaning.
    pub fn execute(&mut self, frame: &[u8], out: &mut Outgoing) -> Result<(), Malformed> {
        let Executor { memory, regions } = self;
        let act = |at: At, act: &mut dyn FnMut(&View, usize) -> Result<u64, FabricError>| {
            let offset = usize::try_from(at.offset).map_err(|_| Refusal::OutOfBounds)?;
            regions.with(at.region, |view| act(view, offset).map_err(|error| refusal(&error)))
        };
        let word = |acted: Result<u64, Refusal>| Some(acted.map_or_else(Reply::Refused, Reply::Word));
        let silent = |acted: Result<u64, Refusal>| acted.err().map(Reply::PutRefused);
        let reply = match Request::parse(frame)? {
            Request::Put { at, data } => silent(act(at, &mut |view, at| memory.put(view, at, data).map(|()| 0))),
            Request::Get { at, len } => {
                let read = |into: &mut [u8]| act(at, &mut |view, at| memory.get(view, at, into).map(|()| 0)).map(drop);
                out.queue_filled(Reply::data_head(len).bytes(), len, read).err().map(Reply::Refused)
            }
            Request::Cas { at, expected, new, wake } => {
                word(act(at, &mut |view, at| memory.start_cas(view, at, expected, new, wake)))
            }
            Request::Add { at, delta, wake } => word(act(at, &mut |view, at| memory.start_add(view, at, delta, wake))),
            Request::Notify { at, value, wake } => {
                silent(act(at, &mut |view, at| memory.notify(view, at, value, wake).map(|()| 0)))
            }
            Request::Flush => Some(Reply::Flushed),
            Request::Attach { region } => word(regions.attach(region).map(|()| 0)),
            Request::Detach { region } => {
                regions.detach(region);
                None
            }
        };
        if let Some(reply) = reply {
            let (head, data) = reply.encode();
            out.queue(head.bytes(), data);
        }
        Ok(())
    }
}

fn refusal(error: &FabricError) -> Refusal {
    match error {
        FabricError::OutOfBounds { .. } => Refusal::OutOfBounds,
        FabricError::Misaligned { .. } => Refusal::Misaligned,
        _ => Refusal::Unsupported,
    }
}
