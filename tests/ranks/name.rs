//! Names of tests, as their program knows them.

use std::path::Path;
use transom::Outcome;

/// The name by which the test program knows a test of the calling file: `rma/locks.rs` is module `locks` of program
/// `rma`.
#[track_caller]
pub fn full_name(name: &str) -> String {
    let file = Path::new(std::panic::Location::caller().file()).with_extension("");
    let parts: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
    let tests = parts.iter().rposition(|part| part == "tests").expect("tests lie in a folder `tests`");
    // The first name is the program's. A folder's own file has none.
    let modules = parts.iter().skip(tests + 2).map(|part| &**part).filter(|part| !["main", "mod"].contains(part));
    modules.chain([name]).collect::<Vec<_>>().join("::")
}

/// Fails if no copy of the test program has a test of this name: the harness would run none, and report success.
pub fn has_run(name: &str, outcome: &Outcome) {
    let ran = |rank| String::from_utf8_lossy(outcome.output(rank)).contains("running 1 test\n");
    assert!((0..outcome.statuses().len()).any(ran), "no test is called {name}: {outcome}");
}
