//! The choice of the program that starts a host's ranks: `transom` as the host's [agent](super::agent) where it is
//! installed, else a shell [script](super::script). The host makes the choice, by a line that it executes, and answers with
//! a line.

use super::agent::IDENTITY;
use super::agent_path::AgentPath;
use super::script::quote;
use crate::variables::{AGENT, VariableError};
use std::ffi::OsStr;
use std::path::Path;

const AGENT_STARTS: &[u8] = b"transom: agent ";
const SCRIPT_STARTS: &[u8] = b"transom: script";
/// Longest answer, in bytes.
const LONGEST: usize = 8 << 10;

/// The program that starts the ranks of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Starter {
    /// `transom` at this path.
    Agent(String),
    Script,
}

/// The places of `transom` that hosts look at.
pub(super) struct Offer {
    /// Paths, quoted for `sh`, with spaces between.
    paths: Vec<u8>,
}

impl Offer {
    /// Offers the place that TRANSOM_AGENT names; without it `path`, and that in the host's PATH. The user has not named
    /// `path`, so the file must be the user's or root's there: others may own it on a host.
    pub fn new(path: Option<&Path>) -> Result<Self, VariableError> {
        let mut paths = Vec::new();
        match (AGENT.get()?, path) {
            (Some(AgentPath::Off), _) => {}
            (Some(AgentPath::At(path)), _) => quote(&mut paths, path.as_ref()),
            (None, path) => {
                let path =
                    path.filter(|path| path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&b'\n'));
                if let Some(path) = path {
                    paths.extend_from_slice(b"\"$(p=");
                    quote(&mut paths, path.as_os_str());
                    paths.extend_from_slice(
                        b"; { [ -O \"$p\" ] || [ \"$(stat -Lc %u \"$p\" 2>/dev/null)\" = 0 ]; } && printf %s \"$p\")\"",
                    );
                }
                paths.extend_from_slice(b" \"$(command -v transom)\"");
            }
        }
        Ok(Offer { paths })
    }

    /// The line for a host. It executes the first agent that is of this version. The file must be readable: no other
    /// process can open the descriptors of a program that is only executable, and ranks open those of the agent.
    ///
    /// Without an agent it reads the script, which contains the secret. `sh` exports the variable that holds the script
    /// if the host's environment had one of that name, so it is unset first.
    pub fn line(&self, host: &str) -> Vec<u8> {
        let mut line = b"unset _transom_line; for _transom_agent in ".to_vec();
        line.extend_from_slice(&self.paths);
        line.extend_from_slice(
            b"; do case $_transom_agent in /*) [ -f \"$_transom_agent\" ] && [ -r \"$_transom_agent\" ] && \
            [ -x \"$_transom_agent\" ] && [ \"$(\"$_transom_agent\" host-agent --identity </dev/null 2>/dev/null)\" = ",
        );
        quote(&mut line, IDENTITY.as_ref());
        line.extend_from_slice(b" ] && { printf '%s\\n' \"");
        line.extend_from_slice(AGENT_STARTS);
        line.extend_from_slice(b"$_transom_agent\"; exec \"$_transom_agent\" host-agent --host=");
        quote(&mut line, OsStr::new(host));
        line.extend_from_slice(b"; };; esac; done; echo '");
        line.extend_from_slice(SCRIPT_STARTS);
        line.extend_from_slice(b"'; IFS= read -r _transom_line && eval \"$_transom_line\"\n");
        line
    }
}

/// The answer of a host; `None` if it is not complete.
pub(super) fn answer(received: &[u8]) -> Result<Option<Starter>, String> {
    let Some(line) = received.strip_suffix(b"\n") else {
        let is_short = received.len() <= LONGEST;
        return if is_short { Ok(None) } else { Err(format!("it sent {LONGEST} bytes without a line's end")) };
    };
    match line.strip_prefix(AGENT_STARTS) {
        Some(path) => Ok(Some(Starter::Agent(String::from_utf8_lossy(path).into_owned()))),
        None if line == SCRIPT_STARTS => Ok(Some(Starter::Script)),
        None => {
            let shown = String::from_utf8_lossy(&line[..line.len().min(100)]).into_owned();
            Err(format!("it sent {shown:?}, expected {:?} or a path", String::from_utf8_lossy(SCRIPT_STARTS)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    /// The answer of a host that has one program at a path with a blank and a quote, and another in PATH.
    fn answered(at_path: &str, in_path: &str) -> (Starter, String) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("offer-{}-{number}", std::process::id()));
        let (there, bin) = (folder.join("it's there"), folder.join("bin"));
        for (folder, text) in [(&there, at_path), (&bin, in_path)] {
            std::fs::create_dir_all(folder).unwrap();
            let program = folder.join("transom");
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(program, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let line = Offer::new(Some(&there.join("transom"))).unwrap().line("a b");
        let script = format!("{}\n", String::from_utf8(line).unwrap());
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let said = Command::new("sh").args(["-c", &script]).env("PATH", path).output().unwrap();
        let (first, rest) = said.stdout.split_at(said.stdout.iter().position(|byte| *byte == b'\n').unwrap() + 1);
        let starter = match answer(first).unwrap().unwrap() {
            Starter::Agent(path) => Starter::Agent(path.replace(&folder.display().to_string(), "")),
            Starter::Script => Starter::Script,
        };
        std::fs::remove_dir_all(folder).unwrap();
        (starter, String::from_utf8(rest.to_vec()).unwrap())
    }

    #[test]
    fn host_starts_the_first_agent_of_this_version() {
        let agent = format!("[ \"$2\" = --identity ] && echo '{IDENTITY}' || echo \"$1|$2\"");
        let other = "echo transom agent 0.0.1 protocol 0";
        let at = |path: &str| (Starter::Agent(path.to_owned()), "host-agent|--host=a b\n".to_owned());
        assert_eq!(answered(&agent, &agent), at("/it's there/transom"));
        assert_eq!(answered(other, &agent), at("/bin/transom"));
        assert_eq!(answered("exit 1", other), (Starter::Script, String::new()));
    }

    /// A user without privileges, and another one.
    const USER: u32 = 54321;
    const OTHER: u32 = 54322;

    /// The starter of a host for [`USER`]. The host's `transom` has this owner and mode. It is a copy of `sh`, which
    /// executes the file `host-agent`: an unreadable script would not run.
    fn starter_of(owner: u32, mode: u32) -> Starter {
        let folder = std::env::temp_dir().join(format!("offer-{}-{owner}-{mode:o}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("host-agent"), format!("[ \"$1\" = --identity ] && echo '{IDENTITY}'\n")).unwrap();
        let program = folder.join("transom");
        std::fs::copy("/bin/sh", &program).unwrap();
        std::os::unix::fs::chown(&program, Some(owner), None).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
        let line = Offer::new(Some(&program)).unwrap().line("a");
        let mut host = Command::new("/bin/sh");
        host.arg("-c").arg(String::from_utf8(line).unwrap()).env("PATH", "/usr/bin:/bin").current_dir(&folder);
        let said = host.uid(USER).gid(USER).stdin(std::process::Stdio::null()).output().unwrap();
        let first = said.stdout.split_inclusive(|byte| *byte == b'\n').next().unwrap();
        let starter = answer(first).unwrap().unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        starter
    }

    #[test]
    fn unreadable_agent_or_one_of_another_user_is_not_used() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("*** NOT RUN: files of other users need root ***");
        }
        let uses = |owner, mode| matches!(starter_of(owner, mode), Starter::Agent(_));
        assert!(uses(USER, 0o755) && uses(0, 0o755));
        assert!(!uses(OTHER, 0o755), "another user's");
        assert!(!uses(USER, 0o111) && !uses(0, 0o711), "unreadable");
        assert!(!uses(0, 0o644), "not executable");
    }

    #[test]
    fn malformed_answers_are_refused() {
        assert_eq!(answer(b"transom: script\n"), Ok(Some(Starter::Script)));
        assert_eq!(answer(b"transom: agent /a b\n"), Ok(Some(Starter::Agent("/a b".to_owned()))));
        assert_eq!((answer(b""), answer(b"transom: scr")), (Ok(None), Ok(None)));
        assert!(answer(b"hello\n").unwrap_err().contains("\"hello\", expected \"transom: script\""));
        assert!(answer(&[b'x'; 9000]).unwrap_err().contains("without a line's end"));
    }
}
