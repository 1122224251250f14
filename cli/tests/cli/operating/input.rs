//! Stdin of the launcher, which rank 0 has, on hosts too.

use super::*;
use std::io::Write;

/// Runs a job with this stdin.
fn fed(args: &[&str], text: &[u8]) -> Ended {
    feed(job(args), text)
}

fn feed(Job { mut command, folder }: Job, text: &[u8]) -> Ended {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // The job may end before it has read everything.
        scope.spawn(move || drop(stdin.write_all(text)));
        let ended = end(child);
        drop(folder);
        ended
    })
}

#[test]
fn stdin_reaches_rank_0_on_hosts() {
    for args in [&["-n", "3"][..], &["-n", "3", "--hosts", "a,b"], &["-n", "3", "--hosts", "a"]] {
        let ended = fed(&[args, &["--output-prefix", "cat"]].concat(), b"hello\nworld");
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.lines, ["[0] hello", "[0] world"]);
        assert_eq!(fed(&[args, &["cat"]].concat(), b"").lines, Vec::<String>::new());
    }
}

/// Any bytes, more than all pipes hold, to a rank that begins to read late.
#[test]
fn stdin_on_hosts_arrives_unchanged() {
    let bytes: Vec<u8> = (0..500_000u32).map(|number| (number * 7 + number / 256) as u8).collect();
    let script = "[ $TRANSOM_RANK = 0 ] || exit 0; sleep 1; cksum";
    let there = fed(&["-n", "2", "--hosts", "a,b", "sh", "-c", script], &bytes);
    let here = fed(&["-n", "2", "sh", "-c", script], &bytes);
    assert_eq!((there.code, there.lines.len(), &there.lines), (Some(0), 1, &here.lines), "{there:?}");
    assert!(here.lines[0].ends_with(" 500000"), "{here:?}");
}

/// A rank that does not read its stdin neither waits for it nor keeps the launcher from ending the job.
#[test]
fn unread_stdin_delays_no_end() {
    let bytes = vec![b'x'; 1 << 20];
    let ended = fed(&["-n", "2", "--hosts", "a,b", "sh", "-c", "exit 3"], &bytes);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let ended = fed(&["-n", "2", "--hosts", "a,b", "--timeout", "2", "sleep", "1000"], &bytes);
    assert_eq!(ended.code, Some(124), "{ended:?}");
    let ended = fed(&["-n", "2", "--hosts", "a,b", "sh", "-c", "read -r line; echo ${#line}"], b"abc\nx");
    assert_eq!((ended.code, ended.lines), (Some(0), vec!["0".to_owned(), "3".to_owned()]), "{}", ended.stderr);
}

/// Rank 0 must not take the lost rest of its stdin for the end. It passes through a file where there is no agent.
#[test]
fn stdin_without_room_on_its_host_ends_the_job() {
    let job =
        job(&["-n", "1", "--hosts", "a", "sh", "-c", "cat >/dev/null; echo everything"]).env("TRANSOM_AGENT", "off");
    std::fs::write(job.folder.path().join("ssh"), "#!/bin/sh\nulimit -f 1\ncd / && exec sh -c \"$2\"\n").unwrap();
    let ended = feed(job, &[b'x'; 3000]);
    assert_eq!(ended.code, Some(255), "{ended:?}");
    assert!(ended.stderr.contains("transom: host a: stdin of rank 0 is lost"), "{ended:?}");
}
