//! Builds of the program on different hosts are compared at the start.

use super::*;
use crate::ranks::full_name;
use std::io::Write;

const ROLE: &str = "RUST_TEST_ROLE";

/// The offset of the build ID in an ELF file: the name `GNU` of a note of type 3 precedes it.
fn build_id_offset(file: &[u8]) -> usize {
    let note = [&20u32.to_le_bytes()[..], &3u32.to_le_bytes(), b"GNU\0"].concat();
    file.windows(note.len()).position(|window| window == note).expect("this program has no build ID") + note.len()
}

/// Host b has another build at the path of the program.
#[test]
fn different_builds_on_hosts_are_refused() {
    let name = "different_builds_on_hosts_are_refused";
    if std::env::var_os(ROLE).is_some() {
        let said = transom::init().map(|world| world.size()).map_err(|error| error.to_string());
        let said = format!("said: {said:?}\n");
        return std::io::stdout().write_all(said.as_bytes()).unwrap();
    }
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
        // Bypasses the capture of a test's output.
        let said = "\n*** NOT RUN: this test needs the right to mount ***\n";
        return std::io::stderr().write_all(said.as_bytes()).unwrap();
    }
    let folder = TempDir::new().unwrap();
    let [program, other] = ["program", "other"].map(|name| folder.path().join(name));
    let mut build = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    std::fs::write(&program, &build).unwrap();
    let at = build_id_offset(&build);
    build[at] ^= 1;
    std::fs::write(&other, &build).unwrap();
    let executable = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
    for file in [&program, &other] {
        std::fs::set_permissions(file, executable()).unwrap();
    }
    let ssh = folder.path().join("mounting-ssh");
    let bind = format!("mount --bind {} {}", other.display(), program.display());
    let script = format!(
        "#!/bin/sh\n[ $1 = b ] || exec sh -c \"$2\"\nexec unshare -m sh -c '{bind} && exec sh -c \"$0\"' \"$2\"\n"
    );
    std::fs::write(&ssh, script).unwrap();
    std::fs::set_permissions(&ssh, executable()).unwrap();
    let test = [program.to_str().unwrap(), "--exact", &full_name(name), "--nocapture", "--test-threads=1"];
    let run = |hosts| {
        let args = [&["-n", "3", "--hosts", hosts][..], &test].concat();
        let ended = job(&args).env("TRANSOM_SSH", &ssh).env(ROLE, "rank").env("TRANSOM_FABRIC", "tcp").end();
        let said: Vec<_> = ended.lines.iter().filter_map(|line| Some(line.split_once("said: ")?.1)).collect();
        assert_eq!(said.len(), 3, "{ended:?}");
        said.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(run("a,c"), ["Ok(3)"; 3]);
    for said in run("a,b") {
        assert!(
            said.contains("rank 0 on host a and rank 2 on host b run different builds of the same program"),
            "{said}"
        );
    }
}
