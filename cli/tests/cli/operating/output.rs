//! `--output-dir` and `--timestamps`: files with the output of each rank, and the time of each line.

use super::*;

const HERE_AND_THERE: [&[&str]; 2] = [&["-n", "2"], &["-n", "2", "--hosts", "a,b"]];
const SPEAK: [&str; 3] = ["sh", "-c", "echo out $TRANSOM_RANK; echo err >&2; printf 'no newline'"];

#[test]
fn output_dir_has_files_of_each_rank() {
    for args in HERE_AND_THERE {
        let folder = TempDir::new().unwrap();
        let new = folder.path().join("new/folder");
        // Older output is replaced.
        for text in ["older and longer output\n", ""] {
            std::fs::create_dir_all(&new).unwrap();
            std::fs::write(new.join("rank.0.stdout"), text).unwrap();
            let args = [args, &["--output-prefix", "--output-dir", new.to_str().unwrap()], &SPEAK].concat();
            let ended = run(&args);
            assert_eq!(ended.code, Some(0), "{ended:?}");
            // The launcher writes the lines, too.
            assert_eq!(ended.lines, ["[0] no newline", "[0] out 0", "[1] no newline", "[1] out 1"]);
            for (name, text) in [
                ("rank.0.stdout", "out 0\nno newline\n"),
                ("rank.1.stdout", "out 1\nno newline\n"),
                ("rank.0.stderr", "err\n"),
                ("rank.1.stderr", "err\n"),
            ] {
                assert_eq!(std::fs::read_to_string(new.join(name)).unwrap(), text, "{name}");
            }
            assert_eq!(std::fs::read_dir(&new).unwrap().count(), 4);
        }
    }
}

#[test]
fn output_files_sort_by_rank() {
    let folder = TempDir::new().unwrap();
    let ended = run(&["-n", "11", "--output-dir", folder.path().to_str().unwrap(), "true"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(folder.path().join("rank.03.stdout").exists() && folder.path().join("rank.10.stderr").exists());
}

#[test]
fn output_dir_that_cannot_be_written_is_named() {
    for folder in ["/dev/null", "/dev/null/x", "/proc/none"] {
        let ended = run(&["-n", "1", "--output-dir", folder, "true"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let said = format!("transom: the output file or folder `{folder}` cannot be created: ");
        assert!(ended.stderr.starts_with(&said), "{ended:?}");
    }
}

/// Opening a named pipe without a reader would block the launcher for ever.
#[test]
fn output_file_that_is_an_unread_pipe_is_named() {
    let folder = TempDir::new().unwrap();
    let pipe = folder.path().join("rank.0.stdout");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let ended = run(&["-n", "1", "--output-dir", folder.path().to_str().unwrap(), "true"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains(&format!("`{}` cannot be created: ", pipe.display())), "{ended:?}");
}

/// Output that a file cannot take is not lost in silence: the job fails.
#[test]
fn full_output_file_ends_the_job() {
    let folder = TempDir::new().unwrap();
    let command = format!(
        "ulimit -f 8; exec {} run -n 2 --output-dir {} sh -c 'yes | head -c 100000; exec sleep 1000'",
        env!("CARGO_BIN_EXE_transom"),
        folder.path().display()
    );
    let mut command_of = Command::new("sh");
    command_of.args(["-c", &command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = end(command_of.spawn().unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("rank.0.stdout: File too large") || ended.stderr.contains("rank.1.stdout: File"));
}

/// Removes the stamp of a line, after a check of its form.
fn without_stamp(line: &str) -> &str {
    let (stamp, rest) = line.split_once(' ').unwrap();
    let form: String = stamp.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(form, "0000-00-00T00:00:00.000Z", "{line}");
    rest
}

#[test]
fn timestamps_begin_each_line() {
    for args in HERE_AND_THERE {
        let folder = TempDir::new().unwrap();
        let options = ["--timestamps", "--output-dir", folder.path().to_str().unwrap()];
        let ended = run(&[args, &options, &["sh", "-c", "echo a; echo b; echo c >&2"]].concat());
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let mut lines: Vec<_> = ended.lines.iter().map(|line| without_stamp(line)).collect();
        lines.sort();
        assert_eq!(lines, ["a", "a", "b", "b"]);
        let mut lines: Vec<_> = ended.stderr.lines().map(without_stamp).collect();
        lines.sort();
        assert_eq!(lines, ["[0] c", "[1] c"]);
        let file = std::fs::read_to_string(folder.path().join("rank.1.stdout")).unwrap();
        assert_eq!(file.lines().map(without_stamp).collect::<Vec<_>>(), ["a", "b"]);
    }
}
