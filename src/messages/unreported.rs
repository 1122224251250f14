//! Failures of requests that a scope could not start, until the program or the end of the scope has reported them.

use super::comm::Comm;
use super::error::Error;
use super::locked::Lender;

/// The failure of a request that a scope could not start. If it is dropped before the program has seen it, the end of
/// the scope reports it.
pub(super) struct Unreported<'a> {
    comm: &'a Comm,
    lender: Lender,
    /// `None` once the program has seen it.
    error: Option<Error>,
}

impl<'a> Unreported<'a> {
    pub fn new(comm: &'a Comm, lender: Lender, error: Error) -> Self {
        Unreported { comm, lender, error: Some(error) }
    }

    /// Declares that the program has the error.
    pub fn was_seen(&mut self) {
        self.error = None;
    }
}

impl Drop for Unreported<'_> {
    fn drop(&mut self) {
        if let Some(error) = self.error.take() {
            let _ = self.comm.progress_engine.with(|core| core.note_failure(self.lender, error));
        }
    }
}
