//! A job that reaches a limit of the system gets an error with the limit and the remedy; no signal ends the job.

use crate::ranks::full_name;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs this test again under a limit of `ulimit`. That copy starts a job of two ranks.
fn under(limit: &str, test: &str) -> Output {
    let test = full_name(test);
    let this = std::env::current_exe().unwrap();
    Command::new("sh")
        .args(["-c", &format!("ulimit {limit}; exec \"$0\" --exact {test} --nocapture --test-threads=1")])
        .arg(this)
        .env("TEST_LIMITED", "yes")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A job of two ranks that allocate 512 MiB each.
fn job() {
    let world = match transom::start(2) {
        Ok(world) => world,
        Err(error) => return eprintln!("told: {error}"),
    };
    if let Err(error) = world.allocate::<u64>(64 << 20) {
        eprintln!("told: {error}");
    }
}

fn is_told(limit: &str, test: &str, parts: &[&str]) {
    if std::env::var_os("TEST_LIMITED").is_some() {
        return job();
    }
    let Output { status, stderr, .. } = under(limit, test);
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{limit}: {status}\n{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{limit}: {said}");
    assert!(!said.contains("killed"), "{limit}: {said}");
}

#[test]
fn file_size_limit_of_a_window_is_reported() {
    // `sh` counts in blocks of 512 bytes.
    let parts = ["told: ", "bytes of shared memory", "10240000 bytes (RLIMIT_FSIZE)", "ulimit -f"];
    is_told("-f 20000", "file_size_limit_of_a_window_is_reported", &parts);
}

#[test]
fn file_size_limit_at_start_is_reported() {
    let parts = ["told: ", "51200 bytes (RLIMIT_FSIZE)", "ulimit -f"];
    is_told("-f 100", "file_size_limit_at_start_is_reported", &parts);
}

#[test]
fn file_size_limit_of_the_launcher_is_reported() {
    if std::env::var_os("TEST_LIMITED").is_some() {
        return job();
    }
    let Output { status, stderr, .. } = under("-f 0", "file_size_limit_of_the_launcher_is_reported");
    let said = String::from_utf8_lossy(&stderr);
    assert!(said.contains("0 bytes (RLIMIT_FSIZE)") && said.contains("ulimit -f"), "{status}: {said}");
}

#[test]
fn address_space_limit_of_a_window_is_reported() {
    let parts = ["told: ", "bytes of shared memory", "(RLIMIT_AS)", "ulimit -v"];
    is_told("-v 500000", "address_space_limit_of_a_window_is_reported", &parts);
}

/// The launcher's output goes to a file.
#[test]
fn file_size_limit_of_output_is_reported() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("limited_output");
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 8000; exec \"$0\" run -n 1 sh -c 'yes | head -c 8000000' > \"$1\""])
        .arg(env!("CARGO_BIN_EXE_transom"))
        .arg(&file)
        .stdin(Stdio::null())
        .output();
    let _ = std::fs::remove_file(&file);
    let Output { status, stderr, .. } = output.unwrap();
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.code() == Some(1) && said.contains("4096000 bytes (RLIMIT_FSIZE)"), "{status}: {said}");
}
