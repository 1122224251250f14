//! The descriptor and the tasks that wait for the next event of any kind.

use super::Core;
use crate::messages::progress::Events;
use std::collections::BTreeMap;
use std::task::Waker;

#[derive(Default)]
pub(crate) struct Armed {
    pub events: Option<Events>,
    /// Wakers of tasks that wait for events, by task number.
    pub(super) wakers: BTreeMap<u64, Waker>,
}

impl Core {
    /// Notifies the armed descriptor and tasks of an event.
    #[inline]
    pub fn happened(&mut self) {
        if let Some(armed) = self.armed.take() {
            self.tell(armed);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&mut self, armed: Armed) {
        armed.events.iter().for_each(Events::tell);
        self.news |= !armed.wakers.is_empty();
        self.wakers.extend(armed.wakers.into_values());
    }

    /// Registers a task to wake at the next event, and numbers the task if it has no number yet. Returns the earlier
    /// waker of the task, which the caller drops once the lock is released.
    pub fn wake_at_news(&mut self, task: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let task = *task.get_or_insert_with(|| {
            self.tasks += 1;
            self.tasks
        });
        self.armed.get_or_insert_default().wakers.insert(task, waker)
    }

    /// Removes a task that waits for events. The caller drops its waker once the lock is released.
    pub fn ignore_news(&mut self, task: u64) -> Option<Waker> {
        let armed = self.armed.as_mut()?;
        let waker = armed.wakers.remove(&task);
        if armed.events.is_none() && armed.wakers.is_empty() {
            self.armed = None;
        }
        waker
    }

    /// Notifies the armed descriptor and tasks if pipes have new bytes, or if a call has let in more than its own
    /// message.
    #[cold]
    #[inline(never)]
    pub fn tell_news(&mut self) {
        self.engine.hear_pipes();
        if self.engine.take_news() {
            self.happened();
        }
    }
}
