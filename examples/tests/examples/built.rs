//! Finds the examples that cargo built for these tests.

use std::path::PathBuf;

pub fn example(name: &str) -> PathBuf {
    let this = std::env::current_exe().expect("this program has a path");
    let build = this.ancestors().nth(2).expect("this program lies in `deps` of the build");
    let path = build.join("examples").join(name);
    assert!(path.exists(), "{} is missing: `cargo test` builds it, `cargo test --test` does not", path.display());
    path
}
