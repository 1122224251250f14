//! Options of `transom run` under their names of mpirun and srun.

use super::*;

/// Each alias has the effect of the option: the same lines of two ranks.
#[test]
fn alias_has_the_effect_of_its_option() {
    let tell = ["sh", "-c", "echo $TRANSOM_RANK on $TRANSOM_HOST, $(pwd)"];
    let (here, there) = (["0 on , /", "1 on , /"], ["0 on a, /", "1 on b, /"]);
    let (marked, dated) = (["[0] 0 on , /", "[1] 1 on , /"], ["DATE 0 on , /", "DATE 1 on , /"]);
    for (args, expected) in [
        (&["-np", "2", "--wdir", "/"][..], here),
        (&["--wdir", "/", "-np", "2"], here),
        (&["--np", "2", "--wdir", "/"], here),
        (&["--ntasks", "2", "--wdir", "/"], here),
        (&["--ntasks=2", "--wdir=/"], here),
        (&["-n", "2", "--wd", "/"], here),
        (&["-n", "2", "--chdir", "/"], here),
        (&["-n", "2", "-D", "/"], here),
        (&["-np", "2", "-H", "a,b", "--wd", "/"], there),
        (&["-np", "2", "-H", "a:1,b:1", "--wd", "/"], there),
        (&["-np", "2", "--host", "a,b", "--wd", "/"], there),
        (&["-np", "2", "-host", "a,b", "-wdir", "/"], there),
        (&["-host", "a,b", "-n", "2", "-wd", "/"], there),
        (&["-np", "2", "--tag-output", "--wd", "/"], marked),
        (&["-n", "2", "--wdir", "/", "--label"], marked),
        (&["-l", "-n", "2", "--wdir", "/"], marked),
        (&["-n", "2", "--wdir", "/", "--output-prefix=none", "--timestamp-output"], dated),
    ] {
        let ended = run(&[args, &tell].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{args:?}");
        let undated = |line: &String| match line.split_once("Z ") {
            Some((_, rest)) => format!("DATE {rest}"),
            None => line.clone(),
        };
        let mut lines: Vec<_> = ended.lines.iter().map(undated).collect();
        lines.sort();
        assert_eq!(lines, expected, "{args:?}");
    }
}

#[test]
fn words_behind_the_program_reach_it_unchanged() {
    for options in [&["-n", "1"][..], &["-np", "1"], &["-n", "1", "--"], &["-np", "1", "--"]] {
        let ended = run(&[options, &["echo", "-np", "2", "-host", "a", "--label", "-l", "-N", "3"]].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{options:?}");
        assert_eq!(ended.lines, ["-np 2 -host a --label -l -N 3"], "{options:?}");
    }
}
