//! Requests as futures, without a runtime.

use super::error::Error;
use super::hub::Hub;
use super::locked::Core;
use super::waits::WaitingForSome;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use transom_locks::Awaited;

thread_local! {
    /// Where the messages are that this thread turns itself, as it is in their `block_on`.
    static DRIVEN: Cell<*const Hub> = const { Cell::new(std::ptr::null()) };
}

/// A poll has found nothing. The task is polled again at once where nothing but polls turns its messages: under another executor, or
/// under `block_on` of another rank of this process, without a progress thread. Such a poll first waits briefly and gives the core
/// away: an executor that polls in a loop would keep the core from the rank that is waited for.
pub(super) fn pending(hub: &Hub, context: &Context<'_>) {
    if !std::ptr::eq(DRIVEN.get(), hub) && !hub.thread.runs() {
        hub.wait_briefly();
        context.waker().wake_by_ref();
    }
}

struct Woken {
    again: AtomicBool,
    hub: Arc<Hub>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.again.store(true, SeqCst);
        self.hub.ring();
    }
}

/// What this thread turns is as it was before when this is dropped, also if there is a panic.
struct Driving(*const Hub);

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVEN.set(self.0);
    }
}

pub(super) fn block_on<F: Future>(hub: &Arc<Hub>, future: F) -> Result<F::Output, Error> {
    let mut future = pin!(future);
    let woken = Arc::new(Woken { again: AtomicBool::new(false), hub: hub.clone() });
    let waker = Waker::from(woken.clone());
    loop {
        let polled = {
            let _driving = Driving(DRIVEN.replace(Arc::as_ptr(hub)));
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        let call = WaitingForSome { hub, call: "block_on", keys: Core::awaited };
        hub.wait(&call, Awaited::Anyone, |_| woken.again.swap(false, SeqCst).then_some(()))?;
    }
}
