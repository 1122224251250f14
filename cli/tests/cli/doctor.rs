//! `transom doctor`: each fault of a host, or between two, is named with what to do. Hosts are names of this machine; a
//! script for `ssh` gives some of them a fault.

use crate::copies::outside_batch_job;
use serde_json::Value;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_transom");

/// The line by which the launcher starts ranks without an agent goes through `sed`, which changes it for a host.
fn script(old: &str) -> String {
    format!(
        "#!/bin/sh
        change() {{ sed -u \"$1\" | sh -c \"$2\"; }}
        case $1 in
            dead) echo 'ssh: connect to host dead port 22: No route to host' >&2; exit 255;;
            missing) change 's#{PROGRAM}#/no/such/transom#g' \"$2\";;
            foreign) change 's#{PROGRAM}#/bin/cat#g' \"$2\";;
            old) change 's#{PROGRAM}#{old}#g' \"$2\";;
            deaf) change \"s#_transom_hub='[^']*'#_transom_hub='127.0.0.1:1'#\" \"$2\";;
            far) change \"s#TRANSOM_TCP_PORTS='47000-47009'#TRANSOM_TCP_PORTS='47010-47019'#g\" \"$2\";;
            *) exec sh -c \"$2\";;
        esac\n"
    )
}

/// A copy of the program with another build ID.
fn other_build(folder: &TempDir) -> String {
    let mut build = std::fs::read(PROGRAM).unwrap();
    // The name `GNU` of a note of type 3 precedes the build ID.
    let note = [&20u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"GNU\0"].concat();
    let at = build.windows(note.len()).position(|window| window == note).expect("this program has no build ID");
    build[at + note.len()] ^= 1;
    let path = folder.path().join("old");
    std::fs::write(&path, build).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A command with the script for `ssh`.
pub fn doctor(folder: &TempDir, program: &[&str], args: &[&str]) -> Command {
    let ssh = folder.path().join("ssh");
    std::fs::write(&ssh, script(&folder.path().join("old").display().to_string())).unwrap();
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).args(args).env("TRANSOM_SSH", ssh).stdin(Stdio::null());
    for name in ["TRANSOM_LOG", "TRANSOM_FABRIC", "TRANSOM_GRACE", "TRANSOM_OUTPUT_PREFIX"] {
        command.env_remove(name);
    }
    outside_batch_job(&mut command);
    command
}

/// Runs the doctor with `--json`; returns its status and the findings.
pub fn findings(command: &mut Command) -> (Option<i32>, Vec<Value>) {
    let Output { status, stdout, stderr } = command.arg("--json").output().unwrap();
    let json = serde_json::from_slice(&stdout);
    (
        status.code(),
        json.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&[stdout, stderr].concat()))),
    )
}

pub fn text<'v>(finding: &'v Value, field: &str) -> &'v str {
    finding[field].as_str().unwrap_or_default()
}

/// The finding of a host about a subject.
#[track_caller]
pub fn about<'v>(findings: &'v [Value], host: &str, subject: &str) -> &'v Value {
    let found = findings.iter().find(|finding| text(finding, "host") == host && text(finding, "subject") == subject);
    found.unwrap_or_else(|| panic!("nothing about {subject} of {host}: {findings:#?}"))
}

pub fn failures(findings: &[Value]) -> Vec<[&str; 2]> {
    let failed = findings.iter().filter(|finding| text(finding, "verdict") == "FAILED");
    failed.map(|finding| [text(finding, "host"), text(finding, "subject")]).collect()
}

#[test]
fn doctor_finds_no_failure_on_sound_hosts() {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("list"), "a slots=2\nb slots=7\n").unwrap();
    let list = folder.path().join("list").display().to_string();
    for hosts in [["--hosts", "a,b"], ["--hostfile", &list]] {
        let (code, found) = findings(&mut doctor(&folder, &[PROGRAM, "doctor"], &hosts));
        assert_eq!((code, failures(&found)), (Some(0), vec![]), "{found:#?}");
        for [host, other] in [["a", "b"], ["b", "a"]] {
            assert!(text(about(&found, host, "reached"), "found").contains("/ssh` in "), "{found:#?}");
            assert!(text(about(&found, host, "hub"), "found").starts_with("reached at "), "{found:#?}");
            let access = about(&found, host, &format!("tcp to {other}"));
            assert!(text(access, "found").starts_with("a get takes "), "{access}");
            for subject in
                ["build", "shm", "tcp", "verbs", "cores", "open files", "processes", "memlock", "/dev/shm", "copies"]
            {
                about(&found, host, subject);
            }
        }
    }
}

#[test]
fn doctor_names_the_fault_of_each_host() {
    let folder = TempDir::new().unwrap();
    other_build(&folder);
    let hosts = ["--hosts", "a,dead,missing,foreign,old,deaf"];
    let (code, found) = findings(doctor(&folder, &[PROGRAM, "doctor"], &hosts).env("TRANSOM_AGENT", "off"));
    let copy = |host: &str| format!("copy this build there: `scp {PROGRAM} {host}:{PROGRAM}`");
    for (host, subject, said, advice) in [
        ("dead", "reached", "No route to host", "`ssh dead true` must work without a password"),
        ("missing", "transom", "cannot start `/no/such/transom` on host ", copy("missing").as_str()),
        ("foreign", "transom", "this check ended there, rank 0 exited with status 1", copy("foreign").as_str()),
        ("old", "build", "this program is another build there", "copy one build of each program to all hosts"),
        ("deaf", "hub", "127.0.0.1:1: Connection refused", "TRANSOM_HUB_PORTS=47100-47109"),
    ] {
        let fault = about(&found, host, subject);
        assert_eq!(text(fault, "verdict"), "FAILED", "{fault}");
        assert!(text(fault, "found").contains(said) && text(fault, "advice").contains(advice), "{fault}");
    }
    assert_eq!((code, failures(&found).len()), (Some(1), 5), "{found:#?}");
}

/// Both ranks of a pair need the only port, which is in use.
#[test]
fn doctor_reports_ports_in_use() {
    let taken = TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = TempDir::new().unwrap();
    let mut command = doctor(&folder, &[PROGRAM, "doctor"], &["--hosts", "a,b"]);
    let (code, found) = findings(command.env("TRANSOM_TCP_PORTS", format!("{port}-{port}")));
    assert_eq!((code, failures(&found)), (Some(1), vec![["a", "tcp to b"], ["b", "tcp to a"]]), "{found:#?}");
    let said = format!("TRANSOM_TCP_PORTS={port}-{port}, of which each listener on a host needs one");
    assert!(text(about(&found, "a", "tcp to b"), "found").contains(&said), "{found:#?}");
}

/// A network of its own, in which nothing reaches the TCP ports of the host `far`.
#[test]
#[ignore = "30 s, in which TCP gives up connecting; tests/full runs it"]
fn doctor_names_the_direction_that_is_blocked() {
    let network = "ip link set lo up && ip rule add pref 10 lookup local && ip rule del pref 0 && \
        ip rule add pref 1 ipproto tcp dport 47010-47019 prohibit && exec \"$@\"";
    let own = ["unshare", "-Urn", "sh", "-c", network, "sh"];
    let can = Command::new(own[0]).args(&own[1..]).arg("true").output();
    if !can.as_ref().is_ok_and(|can| can.status.success()) {
        use std::io::Write;
        // Bypasses the capture of a test's output.
        let said = format!("\n*** NOT RUN: no network of its own with rules for ports: {can:?} ***\n");
        return std::io::stderr().write_all(said.as_bytes()).unwrap();
    }
    let folder = TempDir::new().unwrap();
    let mut command = doctor(&folder, &[&own[..], &[PROGRAM, "doctor"]].concat(), &["--hosts", "near,far"]);
    command.env("TRANSOM_AGENT", "off");
    // The rule is for IPv4.
    command.env("TRANSOM_TCP_PORTS", "47000-47009").env("TRANSOM_TCP_INTERFACE", "127.0.0.0/8");
    let (code, found) = findings(&mut command);
    assert_eq!((code, failures(&found)), (Some(1), vec![["near", "tcp to far"]]), "{found:#?}");
    let fault = about(&found, "near", "tcp to far");
    assert!(text(fault, "found").contains("no connection within 30s; "), "{fault}");
    let advice =
        "far must accept TCP from near: TRANSOM_TCP_PORTS=47000-47009, and `firewall-cmd --add-port=47000-47009/tcp`";
    assert!(text(fault, "advice").contains(advice), "{fault}");
}

#[test]
fn doctor_reports_on_this_machine_as_text() {
    let folder = TempDir::new().unwrap();
    let report = |variable: &str, value: &str| {
        let mut command = doctor(&folder, &[PROGRAM, "doctor"], &[]);
        // Not used: this machine needs no remote shell.
        let Output { status, stdout, .. } = command.env("TRANSOM_SSH", "false").env(variable, value).output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap())
    };
    let (code, said) = report("RUST_BACKTRACE", "0");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("this machine\n  ok       build "), "{said}");
    assert!(said.contains("\n  ok       start ") && said.contains("\n0 FAILED, "), "{said}");
    let (code, said) = report("TRANSOM_SPIN_US", "soon");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("  FAILED   variable ") && said.contains("TRANSOM_SPIN_US=\"soon\""), "{said}");
    assert!(said.contains("-> correct or unset it"), "{said}");
    let (code, said) = report("TRANSOM_SPINUS", "1");
    assert!(
        code == Some(0) && said.contains("  warning  variable ") && said.contains("TRANSOM_SPINUS is unknown"),
        "{said}"
    );
}

#[test]
fn doctor_reports_networks_that_hosts_lack() {
    let folder = TempDir::new().unwrap();
    let mut command = doctor(&folder, &[PROGRAM, "doctor"], &["--hosts", "a,b"]);
    let (code, found) = findings(command.env("TRANSOM_FABRIC", "shm"));
    assert_eq!((code, failures(&found)), (Some(1), vec![["a", "network to b"]]), "{found:#?}");
    assert!(text(about(&found, "a", "network to b"), "advice").contains("unset TRANSOM_FABRIC, which is `shm`"));
    let mut command = doctor(&folder, &[PROGRAM, "doctor"], &["--hosts", "a,b"]);
    let (code, found) = findings(command.env("TRANSOM_TCP_INTERFACE", "nosuch0"));
    assert_eq!((code, failures(&found)), (Some(1), vec![["a", "network to b"]]), "{found:#?}");
    let tcp = about(&found, "b", "tcp");
    assert!(text(tcp, "found").contains("TRANSOM_TCP_INTERFACE=nosuch0 selects no address"), "{tcp}");
}
