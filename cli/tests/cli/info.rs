//! `transom info` in a build with the provider `verbs`, where its library is missing.

use std::process::Command;

#[test]
fn info_reports_missing_libibverbs() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("libibverbs.so.1"), "nothing").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    let info = command.arg("info").env("LD_LIBRARY_PATH", directory.path()).output().unwrap();
    let text = String::from_utf8_lossy(&info.stdout);
    let verbs = text.lines().find(|line| line.trim_start().starts_with("verbs")).unwrap_or_default();
    assert!(info.status.success() && verbs.contains("libibverbs cannot be loaded"), "{text}");
    assert!(text.contains("shm-loopback  available"), "{text}");
}
