//! A pipe as what the standard library reads from and writes to.

use super::super::error::Error;
use super::{Fault, Pipe};
use std::io::{self, ErrorKind};

/// Waits until a byte has come; 0 is the end of the stream.
impl io::Read for &Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_some(into)?)
    }
}

/// Waits until a byte goes. By the last two steps, a long buffer is not copied, and the call waits until the peer has got it
/// all: two ranks that both write before they read may wait for each other.
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

/// With the error within, which names the rank: [`io::Error::get_ref`].
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
