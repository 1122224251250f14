//! Lists of hosts: `--hostfile`, and the variables and files of batch systems.

use super::*;

const TELL: [&str; 3] = ["sh", "-c", "echo $TRANSOM_RANK on $TRANSOM_HOST"];

/// A job of this many ranks that tell their host, with files in its folder.
fn placed(ranks: &str, args: &[&str], files: &[(&str, &str)], variables: &[(&str, &str)]) -> Ended {
    let mut job = job(&[&["-n", ranks], args, &TELL].concat());
    let folder = job.folder.path().to_owned();
    job.command.current_dir(&folder);
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
    for (name, value) in variables {
        job.command.env(name, value);
    }
    job.end()
}

fn on(hosts: &[&str]) -> Vec<String> {
    hosts.iter().enumerate().map(|(rank, host)| format!("{rank} on {host}")).collect()
}

#[test]
fn hostfile_places_ranks_on_hosts() {
    for (text, ranks, hosts) in [
        ("a slots=2\nb slots=1 max_slots=4\n", "3", &["a", "a", "b"][..]),
        ("# both forms\n\na:1   # the first\nb:2\n", "3", &["a", "b", "b"]),
        ("a\nb\n", "4", &["a", "a", "b", "b"]),
        ("a\nb\na\n", "3", &["a", "a", "b"]),
        ("a slots=2\nb", "3", &["a", "a", "b"]),
        ("\ta\r\nme@b\r\n", "2", &["a", "me@b"]),
    ] {
        for option in ["--hostfile", "--machinefile"] {
            let ended = placed(ranks, &[option, "list"], &[("list", text)], &[]);
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{text}");
            assert_eq!(ended.lines, on(hosts), "{text}");
        }
    }
}

#[test]
fn malformed_hostfile_is_refused() {
    for (text, said) in [
        ("", "list: the file names no host"),
        ("# none\n", "list: the file names no host"),
        ("a\n\nb slots=x\n", "list, line 3: \"slots=x\": expected a number above 0"),
        ("a slots=0", "list, line 1: \"slots=0\": expected a number above 0"),
        ("a:0", "list, line 1: a host needs at least one place"),
        ("a:2 slots=2", "list, line 1: \"a:2 slots=2\" gives the number of places twice"),
        ("a rack=3", "list, line 1: \"rack=3\" is unknown"),
        ("-oProxyCommand=x", "list, line 1: \"-oProxyCommand=x\" is no name of a host"),
        ("a;reboot", "list, line 1: \"a;reboot\" is no name of a host"),
        ("a slots=1\nb slots=1", "list: 3 ranks do not fit the 2 places of the hosts"),
    ] {
        let ended = placed("3", &["--hostfile", "list"], &[("list", text)], &[]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("transom: {said}")), "{ended:?}");
    }
    let ended = placed("1", &["--hostfile", "none"], &[], &[]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.starts_with("transom: none: the file cannot be read: No such file"), "{ended:?}");
    let ended = placed("1", &["--hostfile", "list", "--hosts", "a"], &[("list", "a")], &[]);
    assert!(ended.code == Some(2) && ended.stderr.contains("cannot be used with"), "{ended:?}");
}

/// Each system's variables and files, as it sets them for a job of five tasks on two hosts.
const SYSTEMS: [(&str, &[(&str, &str)]); 5] = [
    ("", &[("SLURM_JOB_NODELIST", "n[01-02]"), ("SLURM_TASKS_PER_NODE", "3,2"), ("SLURM_JOB_NUM_NODES", "2")]),
    ("n01\nn01\nn02\nn01\nn02\n", &[("PBS_NODEFILE", "list"), ("PBS_JOBID", "7.server")]),
    ("n01\nn01\nn01\nn02\nn02\n", &[("LSB_DJOB_HOSTFILE", "list"), ("LSB_HOSTS", "n01 n01 n01 n02 n02")]),
    ("", &[("LSB_HOSTS", "n01 n01 n01 n02 n02"), ("LSB_JOBID", "7")]),
    (
        "n01 3 all.q@n01 UNDEFINED\nn02 2 all.q@n02 <NULL>\n",
        &[("PE_HOSTFILE", "list"), ("NSLOTS", "5"), ("NHOSTS", "2")],
    ),
];

#[test]
fn batch_system_names_the_hosts() {
    for (file, variables) in SYSTEMS {
        let ended = placed("5", &[], &[("list", file)], variables);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{variables:?}");
        assert_eq!(ended.lines, on(&["n01", "n01", "n01", "n02", "n02"]), "{variables:?}");
        // Other hosts, or none, on request.
        assert_eq!(placed("2", &["--hosts", "a,b"], &[("list", file)], variables).lines, on(&["a", "b"]));
        assert_eq!(placed("1", &["--hosts", "none"], &[("list", file)], variables).lines, ["0 on"]);
        let ended = placed("6", &[], &[("list", file)], variables);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let said = format!("transom: {}: 6 ranks do not fit the 5 places of the hosts", variables[0].0);
        assert!(ended.stderr.starts_with(&said), "{ended:?}");
    }
}

/// A list of this machine alone needs no `ssh`, which would fail here.
#[test]
fn list_of_this_machine_starts_ranks_here() {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let with_domain = if own.contains('.') { own.clone() } else { format!("{own}.cluster.example") };
    let no_ssh = ("TRANSOM_SSH", "false");
    for name in [own.as_str(), &with_domain, "localhost"] {
        for (list, variables) in [
            (String::new(), &[("SLURM_JOB_NODELIST", name), ("SLURM_TASKS_PER_NODE", "1")][..]),
            (format!("{name}\n{name}\n"), &[("PBS_NODEFILE", "list")]),
        ] {
            let ended = placed("3", &[], &[("list", &list)], &[&[no_ssh], variables].concat());
            assert_eq!(
                (ended.code, ended.lines),
                (Some(0), vec!["0 on".into(), "1 on".into(), "2 on".into()]),
                "{name}"
            );
        }
        for slots in [2, 1] {
            let list = format!("{name} slots={slots}");
            let ended = placed("2", &["--hostfile", "list"], &[("list", &list)], &[no_ssh]);
            assert_eq!((ended.code, ended.lines), (Some(0), vec!["0 on".into(), "1 on".into()]), "{list}");
        }
    }
}

/// A rank's own job stays on the rank's host.
#[test]
fn job_of_a_rank_ignores_the_batch_system() {
    let inner = format!("exec {} run -n 1 sh -c 'echo on $TRANSOM_HOST'", env!("CARGO_BIN_EXE_transom"));
    let outer = job(&["-n", "1", "--hosts", "none", "sh", "-c", &inner]);
    let ended = outer.env("SLURM_JOB_NODELIST", "n[1-2]").end();
    assert_eq!((ended.code, ended.lines), (Some(0), vec!["on".to_owned()]), "{}", ended.stderr);
}

#[test]
fn malformed_batch_list_is_refused() {
    for (variables, said) in [
        (&[("SLURM_JOB_NODELIST", "n[1-2")][..], "SLURM_JOB_NODELIST: \"n[1-2\" lacks a `]`"),
        (&[("PBS_NODEFILE", "missing")], "PBS_NODEFILE: the file cannot be read: No such file"),
        (&[("PBS_NODEFILE", "list")], "PBS_NODEFILE: \"a b\" is no name of a host"),
        (&[("PE_HOSTFILE", "list")], "PE_HOSTFILE: \"a b\": expected a host and a number of slots above 0"),
        (&[("LSB_HOSTS", "a $(reboot)")], "LSB_HOSTS: \"$(reboot)\" is no name of a host"),
    ] {
        let ended = placed("1", &[], &[("list", "a b\n")], variables);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(&format!("transom: {said}")), "{ended:?}");
        assert!(ended.stderr.contains("`--hosts none` starts all ranks here"), "{ended:?}");
    }
}

/// The way by which the user logged in here is not that of a host to the hub.
#[test]
fn ssh_connection_is_not_passed_on() {
    let job = job(&["-n", "1", "--hosts", "a", "sh", "-c", "echo $TRANSOM_HUB"]);
    std::fs::write(job.folder.path().join("ssh"), "#!/bin/sh\nexec sh -c \"$2\"\n").unwrap();
    let ended = job.env("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.8 22").end();
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 1), "{ended:?}");
    assert!(!ended.lines[0].contains("192.0.2.7"), "{ended:?}");
}

/// Nodes of the Slurm job are reached by `srun`, in the job's cgroup; other hosts, and all on request, by `ssh`.
#[test]
fn nodes_of_a_slurm_job_are_reached_by_srun() {
    for (asked, hosts, by) in
        [(None, "n1,n2", ["srun", "srun"]), (None, "n2,other", ["srun", "ssh"]), (Some("ssh"), "n1,n2", ["ssh", "ssh"])]
    {
        let mut job = job(&["-n", "2", "--hosts", hosts, "sh", "-c", "echo $TRANSOM_RANK by $OMP_BY"]);
        let folder = job.folder.path().to_owned();
        let options = "--overlap --cpu-bind=none --mpi=none -N1 -n1 -w";
        let srun = format!("[ \"$1 $2 $3 $4 $5 $6\" = '{options}' ] && shift 7 || exit 9");
        let ssh = "while [ $# != 1 ]; do shift; done; set -- sh -c \"$1\"".to_owned();
        for (name, script) in [("srun", srun), ("ssh", ssh)] {
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\nexec env OMP_BY={name} \"$@\"\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        job.command.env_remove("TRANSOM_SSH").envs(asked.map(|asked| ("TRANSOM_SSH", asked)));
        let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
        let ended = job.env("PATH", path).env("SLURM_JOB_NODELIST", "n[1-2]").end();
        let expected = [0, 1].map(|rank| format!("{rank} by {}", by[rank]));
        assert_eq!(
            (ended.code, ended.lines.as_slice()),
            (Some(0), &expected[..]),
            "{asked:?} {hosts}: {}",
            ended.stderr
        );
    }
}

/// `srun` executes its arguments; `ssh` gives them to a shell.
#[test]
fn srun_starts_ranks_on_hosts() {
    let job = job(&[&["-n", "2", "--hosts", "a,b"][..], &TELL].concat());
    let srun = job.folder.path().join("srun");
    let script = "#!/bin/sh\n[ \"$1 $2 $3\" = '-N1 -n1 -w' ] && shift 4 && exec \"$@\"\n";
    std::fs::write(&srun, script).unwrap();
    std::fs::set_permissions(&srun, PermissionsExt::from_mode(0o755)).unwrap();
    let ended = job.env("TRANSOM_SSH", format!("{} -N1 -n1 -w", srun.display())).end();
    assert_eq!((ended.code, ended.lines), (Some(0), on(&["a", "b"])), "{}", ended.stderr);
}
