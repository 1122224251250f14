//! PMI-1, the protocol of `mpiexec` of MPICH and its derivatives. `srun --mpi=pmi2` also speaks it with clients that
//! begin with it. The client writes lines of `name=value` to a socket inherited from the launcher, which answers each
//! by one line.

use super::error::BootstrapError;
use super::key_value::KeyValue;
use data_encoding::HEXLOWER;
use rustix::fd::BorrowedFd;
use rustix::io::FdFlags;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use transom_locks::Rank;

/// Set together in every process that a PMI launcher starts.
pub(super) const VARIABLES: [&str; 3] = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];
/// Longest answer accepted, in bytes. A longer line is not PMI.
const LONGEST_LINE: u64 = 64 << 10;

/// A session with the launcher; [`KeyValue::finish`] ends it.
pub(super) struct Pmi<S = File> {
    socket: BufReader<S>,
    rank: Rank,
    size: usize,
    space: String,
    longest_key: usize,
    longest_value: usize,
}

impl Pmi {
    /// Opens the session on the socket that PMI_FD names.
    pub fn from_env() -> Result<Self, BootstrapError> {
        let number = |name: &'static str| -> Result<usize, BootstrapError> {
            let value = std::env::var(name).map_err(|why| failed(format!("{name}: {why}")))?;
            value.parse().map_err(|why| failed(format!("{name}={value:?}: {why}")))
        };
        let [fd, rank, size] = VARIABLES.map(number);
        let (fd, rank, size) = (fd?, rank?, size?);
        let number = i32::try_from(fd).map_err(|_| failed(format!("PMI_FD={fd} is not a descriptor number")))?;
        // SAFETY: the launcher left the descriptor open for this process, and no code here owns or closes it. A closed
        // descriptor makes the call below fail. It is not -1, as just checked.
        let theirs = unsafe { BorrowedFd::borrow_raw(number) };
        let fd = rustix::io::fcntl_dupfd_cloexec(theirs, 0).map_err(|errno| {
            failed(format!(
                "descriptor PMI_FD={fd} cannot be used ({errno}); if a rank of a job started this program, or PMI_FD is a \
                 leftover of another job, remove PMI_FD, PMI_RANK and PMI_SIZE from its environment"
            ))
        })?;
        let pmi = Self::begin(File::from(fd), rank, size)?;
        // Processes that this rank starts must not use its session.
        let _ = rustix::io::fcntl_setfd(theirs, FdFlags::CLOEXEC);
        Ok(pmi)
    }
}

impl<S: Read + Write> Pmi<S> {
    fn begin(socket: S, rank: Rank, size: usize) -> Result<Self, BootstrapError> {
        if rank >= size {
            return Err(failed(format!("PMI_RANK={rank} is not below PMI_SIZE={size}")));
        }
        let socket = BufReader::new(socket);
        let mut pmi = Pmi { socket, rank, size, space: String::new(), longest_key: 0, longest_value: 0 };
        pmi.ask("init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let most = pmi.ask("get_maxes", "maxes")?;
        let most = |name: &str| {
            let value = most.get(name).map_or("", String::as_str);
            value.parse().map_err(|_| failed(format!("the launcher sent {name}={value}, expected a number")))
        };
        (pmi.longest_key, pmi.longest_value) = (most("keylen_max")?, most("vallen_max")?);
        let named = pmi.ask("get_my_kvsname", "my_kvsname")?.remove("kvsname");
        pmi.space = named.ok_or_else(|| failed("the launcher sent no kvsname".into()))?;
        Ok(pmi)
    }

    /// Sends a command and reads its answer, which must be `answer` with rc=0 or without rc.
    fn ask(&mut self, command: &str, answer: &str) -> Result<HashMap<String, String>, BootstrapError> {
        let name = command.split(' ').next().unwrap_or_default();
        let io = |source: std::io::Error| failed(format!("{name}: the launcher cannot be reached: {source}"));
        self.socket.get_mut().write_all(format!("cmd={command}\n").as_bytes()).map_err(io)?;
        let mut line = Vec::new();
        (&mut self.socket).take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(io)?;
        let line = String::from_utf8(line).ok().and_then(|line| Some(line.strip_suffix('\n')?.to_owned()));
        let line = line.ok_or_else(|| failed(format!("{name}: the launcher closed the connection")))?;
        let words = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
        let words: HashMap<_, _> = words.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let is = |name: &str, value: &str| words.get(name).map(String::as_str) == Some(value);
        if is("cmd", answer) && (is("rc", "0") || !words.contains_key("rc")) {
            return Ok(words);
        }
        let shown: String = line.chars().take(200).collect();
        Err(failed(format!(
            "{name}: the launcher answered {shown:?}, expected {answer}; srun speaks PMI with --mpi=pmi2 or --mpi=pmix"
        )))
    }

    /// Keys are global to the job, so each key includes its rank.
    fn key(&self, rank: Rank, key: &str) -> Result<String, BootstrapError> {
        let key = format!("transom-{key}-{rank}");
        let why = || {
            failed(format!("key {key} is too long; the launcher accepts fewer than {} characters", self.longest_key))
        };
        if key.len() < self.longest_key { Ok(key) } else { Err(why()) }
    }
}

impl<S: Read + Write> KeyValue for Pmi<S> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
        let value = HEXLOWER.encode(value);
        if value.len() >= self.longest_value {
            let (len, most) = (value.len(), self.longest_value);
            return Err(failed(format!(
                "a value of {len} characters is too long; the launcher accepts fewer than {most}"
            )));
        }
        let key = self.key(self.rank, key)?;
        let command = format!("put kvsname={} key={key} value={value}", self.space);
        self.ask(&command, "put_result").map(drop)
    }

    fn fence(&mut self) -> Result<(), BootstrapError> {
        self.ask("barrier_in", "barrier_out").map(drop)
    }

    fn get(&mut self, rank: Rank, key: &str) -> Result<Vec<u8>, BootstrapError> {
        let key = self.key(rank, key)?;
        let mut found = self.ask(&format!("get kvsname={} key={key}", self.space), "get_result")?;
        let value = found.remove("value").unwrap_or_default();
        let written = HEXLOWER.decode(value.as_bytes());
        written.map_err(|_| {
            failed(format!("{key} has the value {value:?}, expected hexadecimal digits as transom writes them"))
        })
    }

    fn finish(mut self: Box<Self>) -> Result<(), BootstrapError> {
        self.ask("finalize", "finalize_ack").map(drop)
    }
}

fn failed(why: String) -> BootstrapError {
    BootstrapError::Pmi { why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// A launcher that sends `answers` regardless of the commands.
    fn launcher(answers: &'static [u8]) -> UnixStream {
        let (theirs, ours) = UnixStream::pair().unwrap();
        (&theirs).write_all(answers).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        std::thread::spawn(move || std::io::copy(&mut &theirs, &mut std::io::sink()));
        ours
    }

    const BEGIN: &[u8] = b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
        cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=my_kvsname kvsname=kvs_1\n";

    #[test]
    fn malformed_answers_are_refused() {
        for (answers, said) in [
            (&b""[..], "closed the connection"),
            (b"cmd=response_to_init rc=0", "closed the connection"),
            (b"cmd=response_to_init rc=-1\n", "rc=-1"),
            (b"    68cmd=response-to-init;rc=0;\n", "answered"),
            (b"\xff\xff\n", "closed"),
            (b"cmd=response_to_init rc=0\ncmd=maxes\n", "keylen_max="),
            (b"cmd=response_to_init rc=0\ncmd=maxes keylen_max=64 vallen_max=-3\n", "vallen_max=-3"),
            (b"cmd=response_to_init rc=0\ncmd=maxes keylen_max=64 vallen_max=9\ncmd=my_kvsname\n", "no kvsname"),
        ] {
            let error = Pmi::begin(launcher(answers), 0, 2).err().expect("the answers are malformed").to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(Pmi::begin(launcher(BEGIN), 2, 2).is_err());
        let mut long = Pmi::begin(launcher(BEGIN), 0, 2).unwrap();
        assert!(long.put("key", &[0; 600]).unwrap_err().to_string().contains("too long"));
        assert!(long.put(&"key".repeat(30), &[0]).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn session_puts_fences_and_gets() {
        let rest = b"cmd=put_result rc=0 msg=success\ncmd=barrier_out\ncmd=get_result rc=0 msg=success value=00ff\n\
            cmd=get_result rc=0 value=xyz\ncmd=get_result rc=-1 msg=key_not_found\ncmd=finalize_ack\n";
        let mut pmi = Box::new(Pmi::begin(launcher([BEGIN, rest].concat().leak()), 1, 2).unwrap());
        pmi.put("key", &[0, 255]).unwrap();
        pmi.fence().unwrap();
        assert_eq!(pmi.get(1, "key").unwrap(), [0, 255]);
        assert!(pmi.get(0, "key").unwrap_err().to_string().contains("xyz"));
        assert!(pmi.get(0, "key").unwrap_err().to_string().contains("key_not_found"));
        pmi.finish().unwrap();
    }
}
