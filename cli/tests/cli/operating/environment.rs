//! `--env` and `--wdir`: variables and folder of the ranks, here and on hosts.

use super::*;

const HERE_AND_THERE: [&[&str]; 2] = [&["-n", "2"], &["-n", "2", "--hosts", "a,b"]];

#[test]
fn env_reaches_all_ranks() {
    for args in HERE_AND_THERE {
        let show = ["-x", "A=it's = 1", "--env", "B", "--env=C=", "sh", "-c", "echo \"$A|$B|${C-unset}|$D\""];
        let ended = job(&[args, &show].concat()).env("B", "here").env("A", "other").end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.lines, ["it's = 1|here||", "it's = 1|here||"]);
    }
}

#[test]
fn malformed_env_is_refused() {
    for (variable, why) in [
        ("=1", "the name of a variable is expected"),
        ("1A=1", "the name of a variable is expected"),
        ("A B=1", "the name of a variable is expected"),
        ("TRANSOM_TEST_UNSET", "this variable is not set here"),
        ("TRANSOM_RANK=1", "the launcher sets or removes"),
        ("TRANSOM_BOOTSTRAP=none", "the launcher sets or removes"),
    ] {
        let ended = run(&["-n", "1", "--env", variable, "true"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(&format!("--env {variable:?}: {why}")), "{ended:?}");
    }
}

#[test]
fn wdir_is_the_folder_of_all_ranks() {
    let folder = TempDir::new().unwrap();
    let name = folder.path().canonicalize().unwrap().display().to_string();
    std::fs::write(folder.path().join("program"), "#!/bin/sh\npwd\n").unwrap();
    std::fs::set_permissions(folder.path().join("program"), PermissionsExt::from_mode(0o755)).unwrap();
    for args in HERE_AND_THERE {
        let ended = run(&[args, &["--wdir", &name, "./program"]].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.lines, [name.as_str(), &name]);
    }
}

#[test]
fn missing_wdir_is_named() {
    let ended = run(&["-n", "2", "--wdir", "/no/such folder", "true"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said = "transom: the ranks cannot start in the folder `/no/such folder`: No such file or directory";
    assert!(ended.stderr.starts_with(said), "{ended:?}");
    let ended = run(&["-n", "2", "--hosts", "a,b", "--wdir", "/no/such folder", "true"]);
    assert_eq!(ended.code, Some(126), "{ended:?}");
    let said = "/no/such folder: the ranks cannot start in this folder; create it there";
    assert!(["[a] transom: host a: ", "[b] transom: host b: "].iter().any(|host| ended.stderr.starts_with(host)));
    assert!(ended.stderr.contains(said), "{ended:?}");
}
