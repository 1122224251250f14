//! The program that a host without an [agent](super::agent) executes: one line of `sh`, which starts its ranks, forwards
//! their output, and ends them. The host needs `sh`, `setsid`, `env`, `dd`, `wc`, `cat`, `mkdir`, `mkfifo`, `rm` and
//! `/proc`.
//!
//! The ranks' output shares one stream of [records](super::records), because one `ssh` serves a host.
//! Each stream of a rank has a loop. It reads one block of available bytes into a file with `dd`, and writes the file
//! after its length while it holds the turn. The turn is the one line in a pipe that all loops have open. Records are
//! therefore written whole, with any bytes, at a cost of at most three processes per 64 KiB.
//!
//! The first shell executes the launcher's [lines](super::records). The launcher sends no more stdin than a pipe holds,
//! so the shell never blocks on it. `CHECK 0` makes it check its helpers. The output or status of one that was killed or
//! stopped would never arrive, so the shell then ends the host's ranks.

use super::binding::BindTo;
use super::host_job::{HostJob, NO_FOLDER, SearchPath};
use crate::random;
use crate::variables::removed_for_ranks;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Defines a variable that holds a newline, because `$(..)` strips newlines at the end of its output.
const NEWLINE: &[u8] = b"_transom_newline=$(printf '\\nx'); _transom_newline=${_transom_newline%x}; ";

// All variables of the script begin with `_transom_`, because the host's environment variables are also variables of
// `sh`. The program's variables are set by `env` and are not variables of the script.

/// Prepends the address from which `ssh` reached the host, because the hub can be reached there. Skips an address with
/// an interface name, which is valid only on the other machine, and `UNKNOWN`, which `sshd` reports when it does not
/// serve a socket.
const HUB: &str = "_transom_here=${SSH_CONNECTION%% *}; \
    case $_transom_here in *[!0-9a-fA-F.:]*) _transom_here=;; *:*) _transom_here=[$_transom_here];; esac; \
    if [ -n \"$_transom_here\" ]; then _transom_hub=\"$_transom_here:${_transom_hub##*:},$_transom_hub\"; fi; ";

/// `_transom_say LINE [FILE]` writes a record. `_transom_pump RANK o|e` forwards its stdin through the file open as
/// descriptor 6.
const RECORDS: &str = "\
    _transom_say() { read -r _transom_turn <&5; echo \"$1\" >&4; [ -z \"$2\" ] || cat <$2 >&4; echo >&5; }; \
    _transom_pump() { _transom_file=/proc/self/fd/6; trap 'kill -TERM 0' EXIT; \
        while { dd bs=65536 count=1 of=$_transom_file 2>/dev/null || { _transom_say \"l $1 1\"; false; }; } && \
            _transom_length=$(($(wc -c <$_transom_file))) && [ $_transom_length -gt 0 ]; \
        do _transom_say \"$2 $1 $_transom_length\" $_transom_file; done; \
        _transom_say \"$2 $1 0\"; trap - EXIT; }; ";

/// `_transom_rank RANK NAME=VALUE...` starts a rank in a session of its own; `_transom_run` waits for it and kills what
/// it leaves behind in its process group. While it waits, it holds the file from which the rank reads the secret; the
/// rank finds the file by this process and descriptor. The rank inherits no descriptor, so wrappers that close
/// descriptors do no harm. SIGTERM means that the host is [`OVER`]: `_transom_run` then kills the rank, which is `$!`
/// once that differs from its earlier value.
///
/// A stream is a pipe, held open here for reading and writing until its reader and its writer have opened it. They
/// close the other descriptors by `exec`: a redirection for a function only would keep the old descriptor open in `sh`.
const RANK: &str = "\
    _transom_run() { trap 'kill -TERM 0' EXIT; _transom_number=$1; shift; echo \"transom secret $_transom_secret\" >&6; \
        read -r _transom_process _transom_rest </proc/self/stat; \
        _transom_before=$!; trap 'trap - EXIT; \
            [ \"$!\" = \"$_transom_before\" ] || kill -KILL -$! || kill -KILL $!; exit' TERM; \
        { if [ $_transom_number = \"$_transom_input\" ]; then exec </proc/self/fd/3; else exec </dev/null; fi; \
            exec 3<&- 4>&- 5>&- 6>&- 7>&-; _transom_exec TRANSOM_SECRET=$_transom_process,6 \"$@\"; } & \
        _transom_process=$!; exec 3<&- >/dev/null 2>&1; echo \"$_transom_number $_transom_process\" >&7; \
        wait $_transom_process; _transom_status=$?; kill -KILL -$_transom_process; trap - TERM; \
        _transom_say \"x $_transom_number $_transom_status\"; trap - EXIT; }; \
    _transom_rank() { \
        exec 6<>\"$_transom_folder/1-$1\" 8<>\"$_transom_folder/o$1\" 9<>\"$_transom_folder/e$1\"; \
        { exec </proc/self/fd/8 >/dev/null 8<&- 9<&-; _transom_pump $1 o; } & \
        _transom_helpers=\"$_transom_helpers $!\"; \
        exec 6<>\"$_transom_folder/2-$1\"; { exec </proc/self/fd/9 >/dev/null 8<&- 9<&-; _transom_pump $1 e; } & \
        _transom_helpers=\"$_transom_helpers $!\"; \
        exec 6<>\"$_transom_folder/3-$1\"; \
        { [ $1 != \"$_transom_input\" ] || exec 3<>\"$_transom_folder/in0\"; \
            exec >/proc/self/fd/8 2>/proc/self/fd/9 8<&- 9<&-; _transom_run \"$@\"; } & \
        _transom_helpers=\"$_transom_helpers $!\"; exec 6<&- 8<&- 9<&-; }; ";

/// Forwards stdin to rank 0. Descriptor 8 is the pipe to `_transom_feed`, and 9 the pipe to the rank. The first shell
/// holds the rank's pipe open, as its own stdin, until `_transom_feed` has opened it. Bytes that the rank does not read
/// are dropped. If the host cannot write them to a file, its ranks end: rank 0 must not take that for the end of stdin.
const INPUT: &str = "\
    _transom_feed() { _transom_file=/proc/self/fd/6; trap 'kill -TERM 0' EXIT; \
        while { dd bs=65536 count=1 of=$_transom_file 2>/dev/null || { \
                echo \"transom: host $_transom_name: stdin of rank 0 is lost: it cannot be written to a file\" \
                    \"(make room in /dev/shm, or where TMPDIR is)\" >&2; exit 1; }; } && \
            _transom_length=$(($(wc -c <$_transom_file))) && [ $_transom_length -gt 0 ]; \
        do cat <$_transom_file 2>/dev/null; _transom_say \"i 0 $_transom_length\"; done; trap - EXIT; }; \
    _transom_open_input() { exec 6<>\"$_transom_folder/in6\" 8<>\"$_transom_folder/in\" 9<&0; \
        { exec </proc/self/fd/8 >/proc/self/fd/9 3<&- 8<&- 9<&-; _transom_feed; } & \
        _transom_helpers=\"$_transom_helpers $!\"; exec </dev/null 6<&- 9<&-; }; ";

/// `_transom_find MODE RANKS` lists in `_transom_places` the processors of each core that this host's ranks may use, or
/// with the modes `numa` and `socket` those of its NUMA node or socket. `taskset` tells which are allowed and online.
/// `_transom_place MODE RANK` sets `_transom_bound` to those of a local rank, empty if it is not bound.
///
/// A core is known by its first processor. `_transom_in_KEY` has the allowed processors of a core, node or socket, and
/// `_transom_of_CORE` has the key for a core. The kernel gives its lists only to a reader of whole files, which `read`
/// is not.
const BINDING: &str = "\
    _transom_find() { _transom_places=; _transom_cores=; _transom_count=0; \
        _transom_mode=$1; _transom_ranks_here=$2; _transom_allowed=$(LC_ALL=C taskset -cp $$); \
        _transom_ifs=$IFS; IFS=,; set -- ${_transom_allowed##* }; IFS=$_transom_ifs; \
        for _transom_part; do _transom_cpu=${_transom_part%-*}; while [ $_transom_cpu -le ${_transom_part#*-} ]; do \
            _transom_folder_of=/sys/devices/system/cpu/cpu$_transom_cpu; \
            _transom_core=$(cat $_transom_folder_of/topology/thread_siblings_list) || _transom_core=$_transom_cpu; \
            _transom_core=${_transom_core%%[,-]*}; _transom_key=c$_transom_core; \
            case $_transom_mode in numa) for _transom_key in $_transom_folder_of/node[0-9]*; do break; done; \
                _transom_key=n${_transom_key##*/node};; \
            socket) _transom_key=s$(cat $_transom_folder_of/topology/physical_package_id);; esac; \
            case $_transom_key in ?*[!0-9]*|?) _transom_key=g0;; esac; \
            case \" $_transom_cores \" in *\" $_transom_core \"*) ;; *) \
                _transom_cores=\"$_transom_cores $_transom_core\"; _transom_count=$((_transom_count + 1));; esac; \
            eval \"_transom_of_$_transom_core=$_transom_key; _transom_value=\\$_transom_in_$_transom_key\"; \
            eval \"_transom_in_$_transom_key=$_transom_value${_transom_value:+,}$_transom_cpu\"; \
            _transom_cpu=$((_transom_cpu + 1)); done; done; \
        [ $_transom_ranks_here -le $_transom_count ] || return 0; \
        for _transom_core in $_transom_cores; do eval \"_transom_key=\\$_transom_of_$_transom_core\"; \
            eval \"_transom_places=\\\"\\$_transom_places \\$_transom_in_$_transom_key\\\"\"; done; } 2>/dev/null; \
    _transom_place() { _transom_bound=; [ -n \"$_transom_places\" ] || return 0; _transom_at=$2; \
        [ $1 = core ] || _transom_at=$(($2 * _transom_count / _transom_ranks_here)); \
        set -- $_transom_places; shift $_transom_at; _transom_bound=$1; }; ";

/// `_transom_program PATH PROGRAM` returns if the program exists. Otherwise it names the program and the host, and exits
/// with the status by which shells report it. Without it, `env` would report an error that names neither.
const PROGRAM: &str = "\
    _transom_program() { case $2 in \
        */*) [ -f \"$2\" ] && [ -x \"$2\" ] && return; _transom_why='there is no such executable file';; \
        *) (PATH=$1; command -v \"$2\") >/dev/null 2>&1 && return; _transom_why='no such program in PATH';; esac; \
        printf 'transom: cannot start `%s` on host %s: %s; is it built there, and is the name right?\\n' \
            \"$2\" \"$(cat /proc/sys/kernel/hostname)\" \"$_transom_why\" >&2; exit 127; }; ";

/// A shell that cannot start a process exits, whichever shell it is. The trap then sends SIGTERM to all shells. Those
/// that wait for a rank kill the rank, and the first shell cleans up and ends the host without starting a process.
/// After a normal end the first shell is killed and never runs this trap.
const OVER: &str = "trap 'trap \"\" TERM; kill -TERM 0; \
    echo \"transom: host $_transom_name: its ranks are ended: a process of the launcher was killed, or could not be started\" \
        \"(ulimit -u; a rank takes six, and two threads)\" >&2; \
    exec rm -rf \"$_transom_folder\"' EXIT; trap exit TERM; ";

/// Follows the ranks' numbers.
const FILES: &str =
    "; do set -- \"$@\" \"$_transom_folder/o$_transom_number\" \"$_transom_folder/e$_transom_number\"; done; ";

/// Runs in a process of its own, because the first shell is killed with the launcher where no `ssh` is between. This
/// process makes the folder too, since it always lives to remove it; the folder exists until everything in it is open.
/// Descriptors: 3 has lines from the launcher, 4 takes records, 5 is the turn (a pipe that holds one line), 7 has the
/// process of each rank.
const MAIN: &str = "exec 3<&0 4>&1 </dev/null; { trap 'kill -TERM 0' EXIT; \
    mkdir -m 700 \"$_transom_folder\" && mkfifo \"$_transom_folder/turn\" \"$_transom_folder/processes\" \
        \"$_transom_folder/in\" \"$_transom_folder/in0\" \"$@\" || exit 125; \
    exec 5<>\"$_transom_folder/turn\" 7<>\"$_transom_folder/processes\"; echo >&5; _transom_helpers=; \
    [ -z \"$_transom_input\" ] || exec <>\"$_transom_folder/in0\"; \
    _transom_ranks; [ -z \"$_transom_input\" ] || _transom_open_input; ";

/// Follows the number of ranks. A helper that has ended was killed if its status, by `wait`, names a signal. One
/// that is stopped has at least three seconds to go on: a batch system may stop and continue all processes of a job.
const LOOP: &str = "; _transom_all=; while [ $_transom_left -gt 0 ]; do read -r _transom_number _transom_process <&7; \
        eval _transom_process_$_transom_number=$_transom_process; _transom_all=\"$_transom_all $_transom_number\"; \
        _transom_left=$((_transom_left - 1)); done; rm -rf \"$_transom_folder\"; \
    _transom_kill() { eval _transom_process='$'_transom_process_$2; \
        kill -$1 -$_transom_process || kill -$1 $_transom_process; }; \
    _transom_end() { for _transom_number in $_transom_all; do _transom_kill KILL $_transom_number; done; }; \
    _transom_lose() { echo \"transom: host $_transom_name: its ranks are ended: a process of the launcher there was $1\" \
            \"(process $2)\" >&9; _transom_end; kill -KILL 0; }; \
    _transom_check() { _transom_living=; _transom_stopped=; for _transom_helper in $_transom_helpers; do \
            _transom_state='(none) Z'; read -r _transom_state </proc/$_transom_helper/stat; \
            case ${_transom_state##*) } in \
                Z*) wait $_transom_helper; [ $? -le 128 ] || _transom_lose killed $_transom_helper; continue;; \
                T*) _transom_stopped=$_transom_helper;; esac; \
            _transom_living=\"$_transom_living $_transom_helper\"; done; \
        _transom_helpers=$_transom_living; read -r _transom_now _transom_rest </proc/uptime; \
        _transom_now=${_transom_now%.*}; [ \"$_transom_stopped\" = \"$_transom_before\" ] || _transom_since=; \
        _transom_before=$_transom_stopped; \
        [ -z \"$_transom_stopped\" ] || { _transom_since=${_transom_since:-$_transom_now}; \
            [ $((_transom_now - _transom_since)) -lt 4 ] || _transom_lose stopped $_transom_stopped; }; }; \
    exec 9>&2 2>/dev/null; _transom_since=; _transom_before=; \
    while read -r _transom_signal _transom_number <&3; do case $_transom_signal in \
        END) kill -KILL 0;; CHECK) _transom_check;; EOF) exec 8<&-;; \
        IN) dd bs=$_transom_number count=1 iflag=fullblock <&3 >&8;; \
        *) _transom_kill $_transom_signal $_transom_number;; esac; done; \
    _transom_end; sleep 1; kill -KILL 0; } & wait\n";

/// Builds the line for a host.
pub(super) fn line(job: &HostJob) -> io::Result<Vec<u8>> {
    let host = job.host.display();
    // `setsid` is found by the host's own PATH, which the rank's PATH may lack. The line contains the secret; it is
    // unset first, because `sh` exports it to all processes if the host's environment had a variable of that name.
    let mut line = Vec::from(b"unset _transom_line; _transom_setsid=$(command -v setsid || echo setsid); ".as_slice());
    line.extend_from_slice(NEWLINE);
    line.extend_from_slice(b"cd ");
    quote(&mut line, &job.folder);
    let refusal = format!("transom: host {host}: {}: {NO_FOLDER}", job.folder.display());
    line.extend_from_slice(b" 2>/dev/null || { printf '%s\\n' ");
    quote(&mut line, refusal.as_ref());
    line.extend_from_slice(b" >&2; exit 126; }; unset");
    removed_for_ranks().for_each(|name| line.extend([b" ", name.as_bytes()].concat()));
    line.extend_from_slice(b"; _transom_secret=");
    quote(&mut line, job.secret.as_ref());
    line.extend_from_slice(b"; _transom_name=");
    quote(&mut line, &job.host);
    line.extend_from_slice(if job.input { b"; _transom_input=0" } else { b"; _transom_input=" });
    let hub = job.ranks.first().and_then(|(_, variables)| variables.iter().find(|(name, _)| *name == "TRANSOM_HUB"));
    line.extend_from_slice(b"; _transom_hub=");
    quote(&mut line, hub.map_or("", |(_, hub)| hub).as_ref());
    line.extend_from_slice(b"; ");
    line.extend_from_slice(HUB.as_bytes());
    line.extend_from_slice(RECORDS.as_bytes());
    line.extend_from_slice(BINDING.as_bytes());
    line.extend_from_slice(PROGRAM.as_bytes());
    line.extend_from_slice(b"_transom_exec() { _transom_program ");
    let mut path = Vec::new();
    match &job.path {
        SearchPath::Given(given) => quote(&mut path, given),
        SearchPath::AfterOwn(others) => {
            path.extend_from_slice(b"\"$PATH\"");
            if !others.is_empty() {
                path.push(b':');
                quote(&mut path, others);
            }
        }
    }
    line.extend_from_slice(&path);
    line.push(b' ');
    quote(&mut line, &job.program);
    line.extend_from_slice(b"; exec \"$_transom_setsid\" ${_transom_bound:+taskset -c $_transom_bound} env");
    for (name, value) in &job.env {
        line.push(b' ');
        line.extend_from_slice(name.as_bytes());
        line.push(b'=');
        quote(&mut line, value);
    }
    line.extend_from_slice(b" PATH=");
    line.extend_from_slice(&path);
    line.extend_from_slice(b" \"$@\"");
    for word in std::iter::once(&job.program).chain(&job.args) {
        line.push(b' ');
        quote(&mut line, word);
    }
    line.extend_from_slice(b"; }; ");
    line.extend_from_slice(RANK.as_bytes());
    line.extend_from_slice(INPUT.as_bytes());
    line.extend_from_slice(b"_transom_bound=; _transom_ranks() { :");
    let (bind, size) = (job.bind_to, job.ranks.len());
    if bind != BindTo::None {
        line.extend_from_slice(format!("; _transom_find {bind} {size}").as_bytes());
        let lacking = format!("transom: host {host}: ranks are not bound: there is no taskset (util-linux) in PATH");
        line.extend_from_slice(b"; command -v taskset >/dev/null || { _transom_places=; printf '%s\\n' ");
        quote(&mut line, lacking.as_ref());
        line.extend_from_slice(b" >&2; }");
    }
    for (local, (rank, variables)) in job.ranks.iter().enumerate() {
        if bind != BindTo::None {
            line.extend_from_slice(format!("; _transom_place {bind} {local}").as_bytes());
        }
        if job.report {
            line.extend_from_slice(b"; printf '%s%s\\n' ");
            quote(&mut line, format!("transom: rank {rank}: host {host}, local rank {local} of {size}, ").as_ref());
            line.extend_from_slice(b" \"${_transom_bound:+bound to processors }${_transom_bound:-not bound}\" >&2");
        }
        line.extend_from_slice(format!("; _transom_rank {rank}").as_bytes());
        for (name, value) in variables {
            line.extend_from_slice(format!(" {name}=").as_bytes());
            match name.as_str() {
                "TRANSOM_HUB" => line.extend_from_slice(b"\"$_transom_hub\""),
                _ => quote(&mut line, value.as_ref()),
            }
        }
    }
    line.extend_from_slice(b"; }; ");
    // The name is random, so no other user can have made the folder.
    let name = u64::from_ne_bytes(random::random()?);
    line.extend_from_slice(b"_transom_folder=/dev/shm; [ -w /dev/shm ] || _transom_folder=${TMPDIR:-/tmp}; ");
    line.extend_from_slice(format!("_transom_folder=$_transom_folder/transom.{name:016x}; ").as_bytes());
    line.extend_from_slice(OVER.as_bytes());
    line.extend_from_slice(b"set --; for _transom_number in");
    job.ranks.iter().for_each(|(rank, _)| line.extend_from_slice(format!(" {rank}").as_bytes()));
    line.extend_from_slice(FILES.as_bytes());
    line.extend_from_slice(MAIN.as_bytes());
    line.extend_from_slice(format!("_transom_left={}", job.ranks.len()).as_bytes());
    line.extend_from_slice(LOOP.as_bytes());
    Ok(line)
}

/// Appends a word quoted for `sh`. The quoted text contains no newline.
pub(super) fn quote(line: &mut Vec<u8>, word: &OsStr) {
    line.push(b'\'');
    for byte in OsString::from(word).into_vec() {
        match byte {
            b'\'' => line.extend_from_slice(b"'\\''"),
            b'\n' => line.extend_from_slice(b"'\"$_transom_newline\"'"),
            byte => line.push(byte),
        }
    }
    line.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::settings::Settings;
    use std::process::Command;

    #[test]
    fn quoted_word_survives_a_shell() {
        for word in ["", "a b", "it's", "$HOME `id` \"x\" \\ ! * ;", "two\nlines\n", "ä\u{1f980}", "'\n'", "-n"] {
            let mut line = [NEWLINE, b"printf '%s' "].concat();
            quote(&mut line, word.as_ref());
            assert!(!line.contains(&b'\n'));
            let said = Command::new("sh").args(["-c", std::str::from_utf8(&line).unwrap()]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word);
        }
    }

    #[test]
    fn missing_program_is_named_with_its_host() {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        for (program, why) in [
            ("sh", None),
            ("/bin/sh", None),
            ("no such program", Some("no such program in PATH")),
            ("./no-such-program", Some("there is no such executable file")),
            ("/", Some("there is no such executable file")),
        ] {
            let line = format!("{PROGRAM}_transom_program \"$PATH\" '{program}'; echo found");
            let said = Command::new("sh").args(["-c", &line]).output().unwrap();
            let expected = why.map_or(String::new(), |why| {
                format!(
                    "transom: cannot start `{program}` on host {}: {why}; is it built there, and is the name right?\n",
                    host.trim_end()
                )
            });
            assert_eq!(String::from_utf8_lossy(&said.stderr), expected);
            assert_eq!(said.status.code(), Some(if why.is_some() { 127 } else { 0 }), "{program}");
            assert_eq!(said.stdout.is_empty(), why.is_some(), "{program}");
        }
    }

    /// Eight cores with two hardware threads each; two cores form a node, and four a socket.
    #[test]
    fn places_are_of_allowed_processors_only() {
        let folder = std::env::temp_dir().join(format!("processors-{}", std::process::id()));
        let (full, plain, none) = (&folder.join("full"), &folder.join("plain"), &"/proc/none".into());
        for system in [full, plain] {
            for processor in 0..16 {
                let core = processor % 8;
                let of_processor = system.join(format!("cpu{processor}"));
                std::fs::create_dir_all(of_processor.join("topology")).unwrap();
                let write = |name: &str, text| std::fs::write(of_processor.join("topology").join(name), text).unwrap();
                write("thread_siblings_list", format!("{core},{}\n", core + 8));
                // Some systems have the number -1, and no nodes.
                write("physical_package_id", format!("{}\n", if system == full { core / 4 * 7 } else { -1 }));
                if system == full {
                    std::fs::create_dir(of_processor.join(format!("node{}", core / 2))).unwrap();
                }
            }
        }
        for (system, mode, ranks, bound) in [
            (full, "core", 3, "0 1,9 2,10"),
            (full, "core", 5, "0 1,9 2,10 4 5"),
            (full, "core", 6, ""),
            (full, "numa", 2, "0,1,9 2,10"),
            (full, "numa", 5, "0,1,9 0,1,9 2,10 4,5 4,5"),
            (full, "socket", 3, "0,1,2,9,10 0,1,2,9,10 4,5"),
            (full, "socket", 6, ""),
            (plain, "core", 2, "0 1,9"),
            (plain, "numa", 2, "0,1,2,4,5,9,10 0,1,2,4,5,9,10"),
            (plain, "socket", 2, "0,1,2,4,5,9,10 0,1,2,4,5,9,10"),
            (none, "core", 7, "0 1 2 4 5 9 10"),
            (none, "socket", 2, "0,1,2,4,5,9,10 0,1,2,4,5,9,10"),
        ] {
            let binding = BINDING.replace("/sys/devices/system/cpu", &system.display().to_string());
            let taskset = "taskset() { echo \"pid 7's current affinity list: 0-2,4-5,9-10\"; }";
            let each: String =
                (0..ranks).map(|rank| format!("_transom_place {mode} {rank}; echo $_transom_bound; ")).collect();
            let line = format!("{taskset}; {binding} _transom_find {mode} {ranks}; {each}");
            for shell in [&["sh"][..], &["bash"], &["busybox", "sh"]] {
                // Not every machine has all of them.
                let Ok(said) = Command::new(shell[0]).args(&shell[1..]).args(["-c", &line]).output() else { continue };
                let said = String::from_utf8_lossy(&said.stdout).trim().replace('\n', " ");
                assert_eq!(said, bound, "{system:?} {mode} {ranks} {shell:?}");
            }
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    fn line_of(env: &[(&str, &str)], args: &[&str]) -> io::Result<Vec<u8>> {
        let env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let args = args.iter().map(Into::into).collect();
        let settings = Settings { program: "true".into(), ranks: 1, env, args, ..Settings::default() };
        line(&HostJob::new(&settings, "a", "/".as_ref(), "5ec", vec![(0, vec![("TRANSOM_RANK", "0".into())])])?)
    }

    #[test]
    fn ssh_client_address_precedes_the_hubs() {
        for (connection, hub) in [
            ("192.0.2.7 50000 192.0.2.8 22", "192.0.2.7:5,h:5"),
            ("2001:db8::7 50000 2001:db8::8 22", "[2001:db8::7]:5,h:5"),
            // The scope names an interface of the other machine.
            ("fe80::7%eth0 50000 fe80::8%eth0 22", "h:5"),
            // `sshd` with a command as its transport.
            ("UNKNOWN 65535 UNKNOWN 65535", "h:5"),
            ("", "h:5"),
        ] {
            let line = format!("_transom_hub=h:5; {HUB}echo $_transom_hub");
            let said = Command::new("sh").args(["-c", &line]).env("SSH_CONNECTION", connection).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), hub, "{connection}");
        }
    }

    #[test]
    fn line_ends_at_its_only_newline() {
        let line = line_of(&[("A", "two\nlines")], &["\n"]).unwrap();
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
    }

    #[test]
    fn user_cannot_set_variables_of_the_launcher() {
        let given = [("TRANSOM_BOOTSTRAP", "none"), ("TRANSOM_RANK", "7"), ("TRANSOM_SHM", "1,2,3"), ("MINE", "yes")];
        let line = String::from_utf8(line_of(&given, &[]).unwrap()).unwrap();
        let (unset, set) = line.split_once("; _transom_secret").unwrap();
        for name in
            ["TRANSOM_BOOTSTRAP", "TRANSOM_RANK", "TRANSOM_SIZE", "TRANSOM_SHM", "TRANSOM_HUB", "TRANSOM_NESTING"]
        {
            assert!(unset.split(' ').any(|word| word == name), "{unset}");
        }
        assert!(set.contains(" MINE='yes'") && set.contains(" TRANSOM_RANK='0'"), "{set}");
        assert!(!set.contains("TRANSOM_BOOTSTRAP") && !set.contains("TRANSOM_SHM") && !set.contains("'7'"), "{set}");
    }
}
