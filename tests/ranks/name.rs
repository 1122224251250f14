//! Names of tests, as their program knows them.

use std::path::Path;

/// The name by which the test program knows a test of the calling file: its module comes first, where the file is one of several.
#[track_caller]
pub fn full_name(name: &str) -> String {
    let file = Path::new(std::panic::Location::caller().file());
    let stem = file.file_stem().expect("a source file has a name").to_string_lossy();
    let alone = file.parent().is_some_and(|folder| folder.ends_with("tests"));
    if alone { name.to_owned() } else { format!("{stem}::{name}") }
}
