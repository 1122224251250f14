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

    /// Drops the handle of a request whose buffer a scope lends. A send is forgotten as by [`forget`](Self::forget),
    /// and a message that has ended well is discarded. Other requests stay in flight: the end of the scope waits for
    /// them, and reports their failure.
    pub fn leave_to_scope(&mut self, key: Key) {
        match key {
            Key::Message(id) if self.engine.is_sending(id) => self.forget(key),
            _ => drop(self.ended_well(key)),
        }
    }
}
