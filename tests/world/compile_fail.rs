//! Programs that must not compile, because the types of the library reject them.
//!
//! Each file of `tests/world/compile_fail` is two programs. Without a flag it is correct and compiles. With `--cfg
//! wrong` it has more lines, and exactly the errors that comments such as `//~ E0499` at the ends of lines name. Codes
//! and lines are compared, but not the compiler's words, which differ between its versions. The output must contain
//! each text after `//= `, and must not contain a text after `//- `, nor a trait that no program can name.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;

#[test]
fn invalid_programs_fail_and_valid_ones_compile() {
    if cfg!(miri) {
        return; // no processes there
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/world/compile_fail");
    let files = std::fs::read_dir(&folder)
        .expect("the folder of programs should be readable")
        .map(|entry| entry.expect("its entries should be readable").path());
    let files: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|is| is == "rs")).collect();
    assert!(files.len() >= 15, "only {} programs in {}", files.len(), folder.display());

    let compiler = Compiler::find();
    let (next, failures) = (Mutex::new(files.iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(file) = next.lock().expect("no worker panics").next() else { return };
            if let Err(why) = check(&compiler, file) {
                failures.lock().expect("no worker panics").push(why);
            }
        }
    };
    std::thread::scope(|scope| {
        let workers = std::thread::available_parallelism().map_or(2, usize::from).min(files.len());
        (0..workers).for_each(|_| drop(scope.spawn(work)));
    });
    let failures = failures.into_inner().expect("no worker panics");
    assert!(failures.is_empty(), "{} of {} programs:\n\n{}", failures.len(), files.len(), failures.join("\n"));
}

fn check(compiler: &Compiler, file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let expected: BTreeSet<(usize, String)> = text.lines().zip(1..).filter_map(mark).collect();
    let name = file.display();
    if expected.is_empty() || !text.starts_with("//! ") {
        return Err(format!("{name}: expected `//! ` at the start and an error marked with //~"));
    }
    let right = compiler.run(file, &[]);
    if !right.status.success() {
        return Err(format!("{name}: the right program does not compile:\n{}", said(&right)));
    }
    let wrong = compiler.run(file, &["--cfg", "wrong"]);
    let (said, prefix) = (said(&wrong), format!("{name}:"));
    let found = reported(&said, &prefix);
    if wrong.status.success() || found != expected {
        return Err(format!("{name}: expected {expected:?}, found {found:?}:\n{said}"));
    }
    let marked = |mark| text.lines().filter_map(move |line| line.trim_start().strip_prefix(mark));
    if let Some(text) = marked("//= ").find(|text| !said.contains(text)) {
        return Err(format!("{name}: the compiler does not say {text:?}:\n{said}"));
    }
    if let Some(text) = marked("//- ").chain(["sealed"]).find(|text| said.contains(text)) {
        return Err(format!("{name}: the compiler says {text:?}:\n{said}"));
    }
    Ok(())
}

/// `… //~ E0499`: the error that the line should have.
fn mark((line, number): (&str, usize)) -> Option<(usize, String)> {
    let (_, code) = line.split_once("//~ ")?;
    Some((number, code.trim().to_owned()))
}

/// `error[E0499]: …` and on the next line `  --> file:7:22`: the errors that lines have.
fn reported(said: &str, prefix: &str) -> BTreeSet<(usize, String)> {
    let pairs = said.lines().zip(said.lines().skip(1));
    let errors = pairs.filter_map(|(error, place)| {
        let code = error.strip_prefix("error")?;
        let code =
            code.strip_prefix('[').and_then(|code| code.split_once(']')).map_or("without a code", |(code, _)| code);
        let (number, _) = place.trim_start().strip_prefix("--> ")?.strip_prefix(prefix)?.split_once(':')?;
        Some((number.parse().ok()?, code.to_owned()))
    });
    errors.collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The compiler that made this test, and the library as it was built for it.
struct Compiler {
    deps: PathBuf,
    library: PathBuf,
}

impl Compiler {
    /// The library lies beside this test program. Where several builds of it do (other features, other flags, another
    /// compiler), the newest that can be used.
    fn find() -> Compiler {
        let this = std::env::current_exe().expect("the path of this test program");
        let deps = this.parent().expect("the program's folder").to_owned();
        let mut libraries: Vec<PathBuf> = std::fs::read_dir(&deps)
            .expect("the build folder should be readable")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        libraries.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libtransom-") && name.ends_with(".rlib")
        });
        libraries.sort_by_key(|path| path.metadata().and_then(|file| file.modified()).ok());
        let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uses_transom.rs");
        std::fs::write(&empty, "use transom as _;\nfn main() {}\n")
            .expect("a file in the build folder should be writable");
        let mut tried = Vec::new();
        while let Some(library) = libraries.pop() {
            let compiler = Compiler { deps: deps.clone(), library };
            let output = compiler.run(&empty, &[]);
            if output.status.success() {
                return compiler;
            }
            tried.push(format!("{}:\n{}", compiler.library.display(), said(&output)));
        }
        panic!("no usable library in {}\n{}", deps.display(), tried.join("\n"));
    }

    /// Checks a program; nothing is generated.
    fn run(&self, program: &Path, more: &[&str]) -> Output {
        let mut library = OsString::from("transom=");
        library.push(&self.library);
        let mut search = OsString::from("dependency=");
        search.push(&self.deps);
        // `cargo` names the compiler by RUSTUP_TOOLCHAIN, which tests inherit.
        let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        command.args(["--edition=2024", "--crate-type=bin", "--emit=metadata"]);
        command.args(["--cap-lints=allow", "--out-dir", env!("CARGO_TARGET_TMPDIR")]);
        command.arg("--extern").arg(library).arg("-L").arg(search).args(more).arg(program);
        command.output().unwrap_or_else(|error| panic!("rustc does not start: {error}"))
    }
}
