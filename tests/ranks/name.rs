//! Names of tests, as their program knows them.

use std::path::Path;
use transom::Outcome;

/// The name by which the test program knows a test of the calling file: its module comes first, where the file is one of several.
#[track_caller]
pub fn full_name(name: &str) -> String {
    let file = Path::new(std::panic::Location::caller().file());
    let stem = file.file_stem().expect("a source file has a name").to_string_lossy();
    let alone = file.parent().is_some_and(|folder| folder.ends_with("tests"));
    if alone { name.to_owned() } else { format!("{stem}::{name}") }
}

/// Fails if no copy of the test program has a test of this name: the harness runs none then, and ends well.
pub fn has_run(name: &str, outcome: &Outcome) {
    let ran = |rank| String::from_utf8_lossy(outcome.output(rank)).contains("running 1 test\n");
    assert!((0..outcome.statuses().len()).any(ran), "no test is called {name}: {outcome}");
}
