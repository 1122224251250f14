//! The library of the fake adapter.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The folder with the fake libibverbs, for LD_LIBRARY_PATH; the first caller compiles it.
pub fn fake_library() -> &'static Path {
    static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
        let folder = tempfile::tempdir().expect("a folder for the fake adapter");
        let source = folder.path().join("fake.c");
        std::fs::write(&source, include_str!("fake.c")).expect("the folder is writable");
        let built = Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
            .arg(source)
            .arg("-o")
            .arg(folder.path().join("libibverbs.so.1"))
            .status();
        assert!(built.as_ref().is_ok_and(|status| status.success()), "cannot compile tests/adapter/fake.c: {built:?}");
        folder
    });
    FOLDER.path()
}
