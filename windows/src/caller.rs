//! The line of the program that called the library, for reports of long waits. Found from a backtrace, so that calls
//! that do not wait long pay nothing for it.

use std::backtrace::Backtrace;
use std::path::{Path, PathBuf};

/// Folders of the library's crates in its repository. A crate from a registry is in a folder `transom-NAME-VERSION`.
const FOLDERS: [&str; 10] = [
    "channel/src",
    "collective/src",
    "launch/src",
    "locks/src",
    "network/src",
    "shm-loopback/src",
    "src",
    "tcp/src",
    "verbs/src",
    "windows/src",
];

/// Describes the innermost call of the program in a backtrace: `, called at FILE:LINE`, or `, called by FUNCTION`
/// without debug information. Empty if the backtrace shows neither. The first use reads the debug information, which
/// takes up to a second.
pub(crate) fn describe(frames: &Backtrace) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("/"));
    let here = std::env::current_dir().unwrap_or_default();
    of_backtrace(&frames.to_string(), &here, crates).unwrap_or_default()
}

/// Finds the first frame of the program in a printed backtrace: lines ` 7: FUNCTION`, each followed by
/// ` at FILE:LINE:COLUMN` if that is known, with files relative to `here`. `crates` has the folders of the library.
fn of_backtrace(frames: &str, here: &Path, crates: &Path) -> Option<String> {
    let mut lines = frames.lines().map(str::trim_start).peekable();
    while let Some(line) = lines.next() {
        let Some((number, function)) = line.split_once(": ") else { continue };
        if number.parse::<u32>().is_err() {
            continue;
        }
        let position = lines.peek().and_then(|line| line.strip_prefix("at ")?.rsplit_once(':'));
        let Some((file_and_line, _column)) = position else {
            if is_program(function) {
                return Some(format!(", called by {function}"));
            }
            continue;
        };
        let file = file_and_line.rsplit_once(':').map_or(file_and_line, |(file, _)| file);
        if is_programs_file(&here.join(file.trim_start_matches("./")), crates) {
            return Some(format!(", called at {file_and_line}"));
        }
    }
    None
}

/// Returns whether a source file is the program's: not one of the library, of the standard library, or of C.
fn is_programs_file(file: &Path, crates: &Path) -> bool {
    let is_registry_folder = |inside: &Path| {
        let folder: PathBuf = inside.components().take(1).collect();
        folder.to_str().is_some_and(|folder| {
            let version = folder.strip_prefix("transom-").and_then(|rest| rest.rsplit('-').next());
            version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        })
    };
    let is_library =
        |inside: &Path| FOLDERS.iter().any(|folder| inside.starts_with(folder)) || is_registry_folder(inside);
    let is_std = file.starts_with("/rustc") || file.to_string_lossy().contains("/rustlib/src/rust/");
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    is_rust && !is_std && !file.strip_prefix(crates).is_ok_and(is_library)
}

/// Returns whether a function is the program's: `krate::f`, `<krate::T>::f` or `<krate::T as Trait>::f`, of a crate that
/// is neither of the library nor of the standard library. C functions and unknown ones have no path.
fn is_program(function: &str) -> bool {
    let path = function.trim_start_matches(['<', '&', '*', '(']);
    let path = path.trim_start_matches("mut ").trim_start_matches("dyn ");
    let path = path.split(['<', ' ']).next().unwrap_or(path);
    let Some((krate, _)) = path.split_once("::") else { return false };
    // One mangling adds a hash: `krate[1f…]::f`.
    let krate = krate.split_once('[').map_or(krate, |(krate, _)| krate);
    let is_library = |folder: &&str| {
        let name = folder.trim_end_matches("src").trim_end_matches('/').replace('-', "_");
        krate.strip_prefix("transom").is_some_and(|rest| rest.trim_start_matches('_') == name)
    };
    !FOLDERS.iter().any(is_library) && !["alloc", "core", "std", "test"].contains(&krate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &str = "\
   0: report
             at ./windows/src/waiting.rs:297:22
   1: until<u64, transom_shm_loopback::words::wait::{closure_env#0}<u64>>
             at ./windows/src/waiting.rs:248:35
   2: <transom_shm_loopback::fabric::Loopback as transom_windows::fabric::Fabric>::wait
   3: transom[6e0f]::messages::<impl transom::world::World>::recv
             at /home/halo/transom/src/messages/mod.rs:100:1
   4: core::ops::function::FnOnce::call_once
             at /rustc/5980/library/core/src/ops/function.rs:250:5
   5: <&mut F as core::ops::function::FnOnce<A>>::call_once
";

    fn found(frames: &str) -> Option<String> {
        of_backtrace(frames, Path::new("/home/halo/transom"), Path::new("/home/halo/transom"))
    }

    #[test]
    fn first_frame_of_the_program_is_its_call() {
        let outer = "   8: halo::main\n             at ./examples/src/bin/halo.rs:3:5\n   9: main\n";
        let line = format!("{LIBRARY}   6: {{closure#0}}\n             at ./examples/src/field.rs:17:20\n{outer}");
        assert_eq!(found(&line).as_deref(), Some(", called at ./examples/src/field.rs:17"));
        let function =
            format!("{LIBRARY}   6: exchange<u64, halo::Field>\n   7: <halo::Field as halo::Step>::run\n{outer}");
        assert_eq!(found(&function).as_deref(), Some(", called by <halo::Field as halo::Step>::run"));
        // A crate whose name only begins like the library's.
        assert_eq!(found("   0: transom_app::main\n").as_deref(), Some(", called by transom_app::main"));
        let c = "   6: start_thread\n             at ./nptl/pthread_create.c:442:8\n";
        for none in [LIBRARY, "", "disabled backtrace", "   0: main\n   1: <unknown>\n", c] {
            assert_eq!(found(none), None);
        }
    }

    #[test]
    fn crates_of_a_registry_are_the_library() {
        let registry = Path::new("/home/halo/.cargo/registry/src/index");
        for (file, is_program) in [
            ("transom-windows-0.1.0/src/waiting.rs", false),
            ("transom-0.1.0/src/messages/mod.rs", false),
            ("transom-app-tools/src/lib.rs", true),
            ("rayon-1.0.0/src/lib.rs", true),
        ] {
            assert_eq!(is_programs_file(&registry.join(file), registry), is_program, "{file}");
        }
    }
}
