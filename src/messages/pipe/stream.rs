//! The [`io::Read`] and [`io::Write`] of a pipe.

use super::super::error::Error;
use super::{Fault, Pipe};
use std::io::{self, ErrorKind};

/// Waits until at least one byte has arrived; returns 0 at the end of the stream.
impl io::Read for &Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}

/// Waits until at least one byte is put. With the last two steps, a long buffer is not copied, and the call waits until
/// the peer has got all of it: two ranks that both write before they read may deadlock.
impl io::Write for &Pipe {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.write_some(data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}

impl io::Write for Pipe {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        Ok(self.write_some(data)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the error, which names the rank: see [`io::Error::get_ref`].
impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        let kind = match &error {
            Error::PeerDied { .. } | Error::PeerLost { .. } => ErrorKind::ConnectionReset,
            Error::PeerLeft { .. } | Error::Closed => ErrorKind::ConnectionAborted,
            Error::Pipe { fault: Fault::Closed | Fault::Ended, .. } => ErrorKind::BrokenPipe,
            Error::NoMemory { .. } => ErrorKind::OutOfMemory,
            Error::Unavailable { .. } => ErrorKind::Unsupported,
            Error::NoSuchRank { .. } | Error::Misuse { .. } => ErrorKind::InvalidInput,
            _ => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
