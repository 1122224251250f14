//! The ranks of one host, with everything that the host needs to start them, and the form in which the launcher sends it
//! to the host's [agent](super::agent): words that end with a zero byte.

use super::binding::BindTo;
use super::settings::Settings;
use crate::variables::{SSH, removed_for_ranks};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use transom_locks::Rank;

/// Prefixes of variables of this process's environment that are set for ranks on other hosts,
const CARRIED: [&str; 4] = ["TRANSOM_", "RUST_", "OMP_", "LD_LIBRARY_PATH"];
/// except this variable, which is for the launcher.
const NOT_CARRIED: &str = SSH.name;
/// The fault of a folder that a host's ranks cannot start in.
pub(super) const NO_FOLDER: &str =
    "the ranks cannot start in this folder; create it there, or name another folder (--wdir)";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostJob {
    /// The host's name in the list of hosts.
    pub host: OsString,
    pub folder: OsString,
    /// The job's secret, in text form.
    pub secret: String,
    pub program: OsString,
    pub args: Vec<OsString>,
    /// Variables of all ranks, beside those of the host.
    pub env: Vec<(OsString, OsString)>,
    pub path: SearchPath,
    pub bind_to: BindTo,
    /// The place of each rank is reported on stderr.
    pub report: bool,
    /// Rank 0 is on this host, and has the launcher's stdin.
    pub input: bool,
    /// The ranks in ascending order, with the variables that give each its job.
    pub ranks: Vec<(Rank, Vec<(String, String)>)>,
}

/// The variable PATH of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SearchPath {
    /// This value.
    Given(OsString),
    /// The host's own folders, then these, so that programs in the launcher's PATH are found if the hosts have the same
    /// folders. Empty if there are none.
    AfterOwn(OsString),
}

impl HostJob {
    pub fn new(
        settings: &Settings,
        host: &str,
        folder: &OsStr,
        secret: &str,
        ranks: Vec<(Rank, Vec<(&'static str, String)>)>,
    ) -> io::Result<Self> {
        let ours = |name: &str| name != NOT_CARRIED && CARRIED.iter().any(|carried| name.starts_with(carried));
        let carried = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours));
        let kept = |(name, _): &(OsString, OsString)| removed_for_ranks().all(|removed| name != removed);
        let env: Vec<_> = carried.chain(settings.env.iter().cloned()).filter(kept).collect();
        env.iter().try_for_each(|(name, _)| checked(name))?;
        let owned = |(name, value): (&str, String)| (name.to_owned(), value);
        let job = HostJob {
            host: host.into(),
            folder: folder.to_owned(),
            secret: secret.to_owned(),
            program: settings.program.clone().into_os_string(),
            args: settings.args.clone(),
            env,
            path: match settings.env.iter().rfind(|(name, _)| name == "PATH") {
                Some((_, given)) => SearchPath::Given(given.clone()),
                None => SearchPath::AfterOwn(std::env::var_os("PATH").unwrap_or_default()),
            },
            bind_to: settings.bind_to,
            report: settings.verbose || settings.report_bindings,
            input: !settings.capture && ranks.first().is_some_and(|(rank, _)| *rank == 0),
            ranks: ranks
                .into_iter()
                .map(|(rank, variables)| (rank, variables.into_iter().map(owned).collect()))
                .collect(),
        };
        if job.words().iter().any(|word| word.contains(&0)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an argument or a variable contains a zero byte"));
        }
        Ok(job)
    }

    /// The words of all fields, in order. The number of its elements precedes each list.
    fn words(&self) -> Vec<Vec<u8>> {
        let mut words: Vec<Vec<u8>> = [&self.host, &self.folder, &OsString::from(&self.secret), &self.program]
            .map(|word| word.as_bytes().to_vec())
            .into();
        let (given, path) = match &self.path {
            SearchPath::Given(path) => (true, path),
            SearchPath::AfterOwn(path) => (false, path),
        };
        words.push(path.as_bytes().to_vec());
        words.extend([given, self.report, self.input].map(|flag| u8::from(flag).to_string().into_bytes()));
        words.push(self.bind_to.to_string().into_bytes());
        let number = |number: usize| number.to_string().into_bytes();
        words.push(number(self.args.len()));
        words.extend(self.args.iter().map(|word| word.as_bytes().to_vec()));
        words.push(number(self.env.len()));
        words.extend(self.env.iter().flat_map(|(name, value)| [name, value].map(|word| word.as_bytes().to_vec())));
        words.push(number(self.ranks.len()));
        for (rank, variables) in &self.ranks {
            words.extend([number(*rank), number(variables.len())]);
            words
                .extend(variables.iter().flat_map(|(name, value)| [name, value].map(|word| word.clone().into_bytes())));
        }
        words
    }

    /// The form that the agent reads.
    pub fn encode(&self) -> Vec<u8> {
        self.words().into_iter().flat_map(|word| [word, vec![0]]).flatten().collect()
    }

    /// Reads what [`encode`](Self::encode) has made. The error is the fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Some(bytes) = bytes.strip_suffix(b"\0") else { return Err("its last word has no end".to_owned()) };
        let mut words = Words(bytes.split(|byte| *byte == 0));
        let (host, folder, secret, program) = (words.word()?, words.word()?, words.text()?, words.word()?);
        let path = words.word()?;
        let path = if words.flag()? { SearchPath::Given(path) } else { SearchPath::AfterOwn(path) };
        let (report, input) = (words.flag()?, words.flag()?);
        let bind_to = words.text()?.parse().map_err(str::to_owned)?;
        let args = words.list(Words::word)?;
        let env = words.list(|words| Ok((words.word()?, words.word()?)))?;
        let ranks = words.list(|words| {
            let rank = words.number()?;
            Ok((rank, words.list(|words| Ok((words.text()?, words.text()?)))?))
        })?;
        match words.0.next() {
            Some(_) => Err("it has more words than expected".to_owned()),
            None if ranks.is_empty() || !ranks.is_sorted_by(|(one, _), (next, _)| one < next) => {
                Err("its ranks do not ascend, or there is none".to_owned())
            }
            None => Ok(HostJob { host, folder, secret, program, args, env, path, bind_to, report, input, ranks }),
        }
    }
}

/// The words that are left of a job.
struct Words<I>(I);

impl<'a, I: Iterator<Item = &'a [u8]>> Words<I> {
    fn word(&mut self) -> Result<OsString, String> {
        self.0.next().map(|word| OsString::from_vec(word.to_vec())).ok_or_else(|| "it ends too early".to_owned())
    }

    fn text(&mut self) -> Result<String, String> {
        self.word()?.into_string().map_err(|word| format!("{word:?} is not UTF-8"))
    }

    fn number(&mut self) -> Result<usize, String> {
        let text = self.text()?;
        text.parse().map_err(|_| format!("{text:?} is not a number"))
    }

    fn flag(&mut self) -> Result<bool, String> {
        match self.number()? {
            flag @ 0..2 => Ok(flag == 1),
            other => Err(format!("{other} is neither 0 nor 1")),
        }
    }

    /// Reads a number, and as many elements. A number that is too large ends with the words.
    fn list<T>(&mut self, element: impl Fn(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        let count = self.number()?;
        (0..count).map(|_| element(self)).collect()
    }
}

/// Checks that `sh` and `env` accept the name of a variable.
fn checked(name: &OsStr) -> io::Result<()> {
    let bytes = name.as_bytes();
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if bytes.first().is_some_and(|first| !first.is_ascii_digit()) && bytes.iter().all(word) {
        return Ok(());
    }
    let why = format!(
        "cannot pass variable {name:?} to a rank on another host; expected letters, digits and _, not a \
         digit first"
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job_of(env: &[(&str, &str)], args: &[&str]) -> io::Result<HostJob> {
        let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let args = args.iter().map(Into::into).collect();
        let settings = Settings { program: "true".into(), ranks: 2, env, args, ..Settings::default() };
        let ranks = [3, 7].map(|rank: Rank| (rank, vec![("TRANSOM_RANK", rank.to_string())]));
        HostJob::new(&settings, "a", "/".as_ref(), "5ec", ranks.into())
    }

    #[test]
    fn job_survives_its_encoding() {
        for (env, args) in
            [(&[][..], &[][..]), (&[("A", ""), ("PATH", "/bin")], &["", "two\nlines", "it's", "\u{1f980}"])]
        {
            let job = job_of(env, args).unwrap();
            assert_eq!(HostJob::decode(&job.encode()).unwrap(), job);
        }
    }

    #[test]
    fn malformed_job_is_refused() {
        let whole = job_of(&[("A", "b")], &["c"]).unwrap().encode();
        // Every beginning is incomplete.
        assert!((0..whole.len()).all(|len| HostJob::decode(&whole[..len]).is_err()));
        for (from, to, why) in [
            ("\x001\0c\0", "\x0018446744073709551615\0c\0", "it ends too early"),
            ("\0none\0", "\0all\0", "expected none, core, numa or socket"),
            ("\x003\x001\0TRANSOM_RANK\x003\0", "\x007\x001\0TRANSOM_RANK\x007\0", "its ranks do not ascend"),
            ("\0A\0b\0", "\0A\0b\0c\0", "is not a number"),
            ("\x007\x001\0", "\x007\x000\0", "more words than expected"),
        ] {
            let text = String::from_utf8(whole.clone()).unwrap();
            assert_eq!(text.matches(from).count(), 1, "{from:?} in {text:?}");
            let error = HostJob::decode(text.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.contains(why), "{to:?}: {error}");
        }
    }

    #[test]
    fn invalid_names_and_zero_bytes_are_refused() {
        assert!(job_of(&[], &[]).is_ok());
        for name in ["", "A B", "A;id", "1A", "ä", "-i", "A="] {
            assert!(job_of(&[(name, "x")], &[]).is_err(), "{name}");
        }
        assert!(job_of(&[], &["a\0b"]).is_err());
        assert!(job_of(&[("A", "a\0b")], &[]).is_err());
    }

    #[test]
    fn user_cannot_set_variables_of_the_launcher() {
        let given = [("TRANSOM_BOOTSTRAP", "none"), ("TRANSOM_RANK", "7"), ("TRANSOM_SHM", "1,2,3"), ("MINE", "yes")];
        let job = job_of(&given, &[]).unwrap();
        let set = |name: &str| job.env.iter().any(|(set, _)| set == name);
        assert_eq!(given.map(|(name, _)| set(name)), [false, false, false, true]);
    }
}
