//! `--map-by`: the order in which ranks take the places of hosts.

use super::*;

const TELL: [&str; 3] = ["sh", "-c", "echo $TRANSOM_RANK on $TRANSOM_HOST, $TRANSOM_LOCAL_RANK of $TRANSOM_LOCAL_SIZE"];

#[test]
fn ranks_take_places_in_the_order_asked_for() {
    let block = &["0 on a, 0 of 2", "1 on a, 1 of 2", "2 on b, 0 of 2", "3 on b, 1 of 2"][..];
    let cyclic = &["0 on a, 0 of 2", "1 on b, 0 of 2", "2 on a, 1 of 2", "3 on b, 1 of 2"];
    for (hosts, map, expected) in [
        ("a,b", "slot", block),
        ("a,b", "block", block),
        ("a,b", "node", cyclic),
        ("a:2,b:2", "cyclic", cyclic),
        ("a:3,b:1", "node", &["0 on a, 0 of 3", "1 on b, 0 of 1", "2 on a, 1 of 3", "3 on a, 2 of 3"]),
        ("a:9,b:9,c:9", "ppr:2:node", block),
        ("a,b", "ppr:3:node", &["0 on a, 0 of 3", "1 on a, 1 of 3", "2 on a, 2 of 3", "3 on b, 0 of 1"]),
    ] {
        let ended = run(&[&["-n", "4", "--hosts", hosts, "--map-by", map], &TELL[..]].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{hosts} {map}");
        assert_eq!(ended.lines, expected, "{hosts} {map}");
    }
    let ended = run(&[&["-n", "2", "--map-by", "node"], &TELL[..]].concat());
    assert_eq!((ended.code, ended.lines), (Some(0), vec!["0 on , 0 of 2".to_owned(), "1 on , 1 of 2".into()]));
}

#[test]
fn unknown_or_impossible_mapping_is_refused() {
    for (args, said) in [
        (&["--hosts", "a,b", "--map-by", "socket"][..], "expected slot, node, or ppr:N:node with N above 0"),
        (&["--hosts", "a,b", "--map-by", "ppr:0:node"], "expected slot, node, or ppr:N:node with N above 0"),
        (&["--hosts", "a,b", "--map-by", "ppr:1:node"], "transom: 3 ranks do not fit 2 hosts with 1 rank each"),
        (&["--hosts", "none", "--map-by", "ppr:2:node"], "transom: 3 ranks do not fit 1 host with 2 ranks each"),
        (
            &["--hosts", "a:1,b:5", "--map-by", "ppr:2:node"],
            "transom: 2 ranks of ppr:2:node do not fit the 1 places of host a",
        ),
    ] {
        let ended = run(&[&["-n", "3"], args, &["true"]].concat());
        assert!(ended.code == Some(2) && ended.stderr.contains(said), "{args:?} {ended:?}");
    }
}

/// Output, stdin, binding report, statuses and signals of ranks that are not in a row on their hosts.
#[test]
fn ranks_in_turn_are_reported_by_their_numbers() {
    let args = ["-n", "5", "--hosts", "a,b", "--map-by", "node", "--grace", "0.3", "--report-bindings"];
    let script = "read -r line; echo $TRANSOM_RANK $line; exec >&-; \
        [ $TRANSOM_RANK = 3 ] && { echo rank three fails >&2; exit 9; }; exec sleep 1000";
    let mut job = job(&[&args[..], &["sh", "-c", script]].concat());
    let mut child = job.command.stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"of rank 0\n").unwrap();
    let ended = end(child);
    assert_eq!((ended.code, ended.lines), (Some(9), ["0 of rank 0", "1", "2", "3", "4"].map(str::to_owned).to_vec()));
    for said in [
        "[b] transom: rank 3: host b, local rank 1 of 2, not bound\n",
        "[a] transom: rank 4: host a, local rank 2 of 3, not bound\n",
        "[3] rank three fails\n",
        "transom: rank 3 exited with status 9\n",
        "transom: ranks 0-2, 4 had not ended 300ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n",
    ] {
        assert!(ended.stderr.contains(said), "{said} in {}", ended.stderr);
    }
}

/// A host that is lost takes its own ranks with it, and no others.
#[test]
fn lost_host_ends_the_ranks_placed_there() {
    // The host is lost once the other one has started a rank.
    let started = TempDir::new().unwrap();
    let file = started.path().join("started").display().to_string();
    let script = format!("echo >{file}; exec sleep 1000");
    let job = job(&["-n", "4", "--hosts", "a,b", "--map-by", "node", "--grace", "0.3", "sh", "-c", &script]);
    let ssh = format!(
        "#!/bin/sh\n[ $1 = a ] && exec sh -c \"$2\"\necho transom: ready; read -r line; echo transom: script; read -r line\n\
         until [ -e {file} ]; do sleep 0.02; done; exit 7\n"
    );
    std::fs::write(job.folder.path().join("ssh"), ssh).unwrap();
    let ended = job.end();
    let said = "transom: rank 1 exited with status 7\n\
                transom: ranks 0, 2 had not ended 300ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n";
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(7), said));
}
