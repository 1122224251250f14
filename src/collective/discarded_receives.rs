//! Receives and discards messages for abandoned collectives, so that their senders do not block.

use crate::messages::locked::{Core, Ended, Fault, Key, Work};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use transom_channel::{Error as Failure, RecvTarget, Select, Status as Came};
use transom_shm_loopback::messages::Bytes;

/// Job ranks whose messages are discarded, until each reports that it has left. All its messages arrive before that
/// report.
#[derive(Default)]
pub(super) struct DiscardedReceives(Vec<(u32, Arc<AtomicBool>)>);

impl DiscardedReceives {
    /// Starts to discard all messages from `ranks` in a context.
    pub fn begin(&mut self, core: &mut Core, context: u32, ranks: impl Iterator<Item = u32>) {
        for rank in ranks {
            let select = Select { context, source: Some(rank), tag: None };
            let over = Arc::new(AtomicBool::new(false));
            self.0.push((rank, over.clone()));
            let key = core.start(Box::new(Sink { select, posted: None, over }));
            core.forget(key);
        }
    }

    /// Ends the discarding of messages from a rank that sends no more.
    pub fn end(&mut self, core: &mut Core, rank: u32) {
        let ended = self.0.extract_if(.., |(of, _)| *of == rank);
        ended.for_each(|(_, over)| over.store(true, Relaxed));
        // A sink otherwise takes a step only when a message arrives.
        core.turn_all();
    }
}

/// Discarding receives from one rank, one after the other.
struct Sink {
    select: Select,
    posted: Option<Key>,
    over: Arc<AtomicBool>,
}

impl Work for Sink {
    fn progress(&mut self, core: &mut Core) -> Option<Ended> {
        loop {
            if let Some(posted) = self.posted {
                let Some((result, _)) = core.ended(posted) else {
                    let ends = self.over.load(Relaxed) && core.withdraw(posted).is_some();
                    return ends.then_some((Ok(Came { peer: 0, tag: 0, length: 0 }), None));
                };
                if let Err(Fault::Message(Failure::PeerFailure { .. })) = result {
                    return Some((result, None));
                }
            }
            let room = RecvTarget::Into(Bytes::owned(Box::<[u8]>::default()), 0);
            let id = core.engine.receive(self.select, room);
            self.posted = Some(Key::Message(id));
        }
    }

    fn awaits(&mut self, awaited: &mut Vec<Key>) -> bool {
        awaited.extend(self.posted);
        true
    }

    fn must_end(&self) -> bool {
        false
    }
}
