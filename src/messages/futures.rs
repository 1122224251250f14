//! Requests as futures, without a runtime.

use super::error::Error;
use super::locked::Core;
use super::progress_engine::ProgressEngine;
use super::waits::WaitingForSome;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use transom_locks::Awaited;

thread_local! {
    /// Engine whose `block_on` this thread is in; null outside.
    static DRIVEN: Cell<*const ProgressEngine> = const { Cell::new(std::ptr::null()) };
}

/// Handles a poll that returns `Pending`. Nothing but polls makes progress under another executor, or under `block_on`
/// of another rank of this process, unless the rank has a progress thread. The task is then woken at once. To leave the
/// core to the awaited rank, such a poll first waits briefly and yields.
pub(super) fn pending(progress_engine: &ProgressEngine, context: &Context<'_>) {
    if !std::ptr::eq(DRIVEN.get(), progress_engine) && !progress_engine.thread.runs() {
        progress_engine.wait_briefly();
        context.waker().wake_by_ref();
    }
}

struct Woken {
    again: AtomicBool,
    progress_engine: Arc<ProgressEngine>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.again.store(true, SeqCst);
        self.progress_engine.ring();
    }
}

/// Restores `DRIVEN` when dropped, also during a panic.
struct Driving(*const ProgressEngine);

impl Drop for Driving {
    fn drop(&mut self) {
        DRIVEN.set(self.0);
    }
}

pub(super) fn block_on<F: Future>(progress_engine: &Arc<ProgressEngine>, future: F) -> Result<F::Output, Error> {
    let mut future = pin!(future);
    let woken = Arc::new(Woken { again: AtomicBool::new(false), progress_engine: progress_engine.clone() });
    let waker = Waker::from(woken.clone());
    loop {
        let polled = {
            let _driving = Driving(DRIVEN.replace(Arc::as_ptr(progress_engine)));
            future.as_mut().poll(&mut Context::from_waker(&waker))
        };
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        let call = WaitingForSome { progress_engine, call: "block_on", keys: Core::awaited };
        progress_engine.wait(&call, Awaited::Anyone, |_| woken.again.swap(false, SeqCst).then_some(()))?;
    }
}
