//! The requests whose buffers scopes lend, and the end of a scope.

use super::{Core, Fault, Key};
use crate::messages::Error;

/// Requests whose buffers a scope lends. Requests whose results were taken are removed when the list exceeds `most`.
#[derive(Default)]
pub(super) struct Lending {
    open: bool,
    requests: Vec<Key>,
    /// Length that triggers the next sweep.
    most: usize,
    /// First failure of a request that could not be started, and whose result the program did not take.
    failed: Option<Error>,
}

/// Requests that scopes lend and whose handles were dropped in flight. Those that have ended are removed when the list
/// exceeds `most`.
#[derive(Default)]
pub(super) struct Left {
    requests: Vec<Key>,
    most: usize,
}

/// Index of an open scope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lender(usize);

/// Smallest value of [`Lending::most`].
const LENT: usize = 128;

impl Core {
    /// Opens a scope.
    pub fn open_scope(&mut self) -> Lender {
        let free = self.scopes.iter().position(|scope| !scope.open).unwrap_or(self.scopes.len());
        if free == self.scopes.len() {
            self.scopes.push(Lending::default());
        }
        self.scopes[free].open = true;
        Lender(free)
    }

    /// Registers a request whose buffers the scope lends.
    #[inline]
    pub fn lend(&mut self, Lender(scope): Lender, request: Key) {
        let lending = &mut self.scopes[scope];
        lending.requests.push(request);
        if lending.requests.len() > lending.most {
            self.sweep(scope);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep(&mut self, scope: usize) {
        let mut requests = std::mem::take(&mut self.scopes[scope].requests);
        requests.retain(|key| self.is_under_way(*key) || self.has_ended(*key).is_some());
        let most = (2 * requests.len()).max(LENT);
        (self.scopes[scope].requests, self.scopes[scope].most) = (requests, most);
    }

    /// Records the failure of a request that the scope could not start, and whose result the program did not take.
    #[cold]
    pub fn note_failure(&mut self, Lender(scope): Lender, error: Error) {
        self.scopes[scope].failed.get_or_insert(error);
    }

    /// Requests whose buffers the scope lends.
    pub fn lent(&self, Lender(scope): Lender) -> &[Key] {
        &self.scopes[scope].requests
    }

    /// Closes a scope. No request that it lends is in flight, and no result will be taken. Returns the failure of the
    /// first failed request whose result was not taken.
    pub fn close_scope(&mut self, Lender(scope): Lender) -> Option<Fault> {
        let mut failed = self.scopes[scope].failed.take().map(Fault::Work);
        let mut requests = std::mem::take(&mut self.scopes[scope].requests);
        for key in requests.drain(..) {
            // The results of most requests were taken, and the requests no longer exist.
            if self.has_ended(key).is_some()
                && let Some((Err(fault), _)) = self.ended(key)
            {
                failed.get_or_insert(fault);
            }
        }
        requests.shrink_to(LENT);
        self.scopes[scope] = Lending { open: false, requests, most: LENT, failed: None };
        failed
    }

    /// Drops the handle of a request whose buffer a scope lends. The request stays in flight: the end of the scope waits
    /// for it, and reports its failure. If it has ended well, its result is discarded, now or in a later call.
    pub fn leave_to_scope(&mut self, key: Key) {
        if self.ended_well(key).is_some() {
            return;
        }
        if let Key::Message(id) = key {
            self.lists.remove_message(id);
        }
        if let Some(watch) = self.watched.get_mut(&key) {
            watch.list = None;
            let waker = watch.waker.take();
            self.let_go(waker);
        }
        self.left.requests.push(key);
        if self.left.requests.len() > self.left.most {
            self.discard_left();
        }
    }

    #[cold]
    #[inline(never)]
    fn discard_left(&mut self) {
        let mut requests = std::mem::take(&mut self.left.requests);
        requests.retain(|key| {
            if let Some(Some(_)) = self.has_ended(*key) {
                self.ended(*key);
            }
            self.is_under_way(*key)
        });
        let most = (2 * requests.len()).max(LENT);
        self.left = Left { requests, most };
    }
}
