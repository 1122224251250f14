//! The job's secret: the processes that see it, and the error without one.

use super::*;

#[test]
fn secret_is_absent_from_arguments_and_environment() {
    let mut call = Call::start(&[
        "a,b",
        "-n",
        "2",
        "sh",
        "-c",
        "read -r transom word secret </proc/${TRANSOM_SECRET%,*}/fd/${TRANSOM_SECRET#*,}; echo $secret; exec sleep 1000",
    ]);
    let mut lines = BufReader::new(call.child.stdout.as_mut().unwrap()).lines();
    let secret = lines.next().unwrap().unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), secret);
    assert!(secret.len() == 64 && secret.bytes().all(|byte| byte.is_ascii_hexdigit()), "{secret}");
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    let environment = |path: &Path| std::fs::read(path.join("environ")).unwrap_or_default();
    let seen = |path: &PathBuf| {
        command_line(path).contains(&secret) || String::from_utf8_lossy(&environment(path)).contains(&secret)
    };
    let seen: Vec<_> = all.filter(seen).collect();
    assert!(seen.is_empty(), "{seen:?}");
    call.signal(Signal::TERM);
    call.end();
}

/// A child of a rank is no rank, and inherits no way to the job's secret.
#[test]
fn child_of_a_rank_gets_no_secret() {
    let name = "child_of_a_rank_gets_no_secret";
    match std::env::var(ROLE).as_deref() {
        Ok("rank") => {
            let world = transom::init().unwrap();
            let [program, args @ ..] = copy(name);
            let mut child = Command::new(program);
            let output = child.args(args).env(ROLE, "child").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let said = said.lines().find_map(|line| Some(&line[line.find("child:")?..]));
            let line = format!("{}\n", said.unwrap_or("nothing"));
            world.barrier().unwrap();
            return std::io::stdout().write_all(line.as_bytes()).unwrap();
        }
        Ok(_) => {
            let place = std::env::var("TRANSOM_SECRET").unwrap().replace(',', "/fd/");
            let found = std::fs::read_to_string(format!("/proc/{place}")).unwrap();
            let world = transom::init().unwrap();
            return println!("child: {} of {} after {}", world.rank(), world.size(), found.trim().len() < 30);
        }
        Err(_) => {}
    }
    let program = copy(name);
    let args = [&["a", "-n", "2"][..], &program.each_ref().map(String::as_str)].concat();
    let ended = Call::start_with(&args, |command| _ = command.env(ROLE, "rank")).end();
    let said: Vec<_> = ended.lines.iter().filter(|line| line.contains("child:")).collect();
    assert!(said.len() == 2 && said.iter().all(|said| said.ends_with("child: 0 of 1 after true")), "{ended:?}");
}

#[test]
fn missing_secret_is_reported() {
    let name = "missing_secret_is_reported";
    if std::env::var_os(ROLE).is_some() {
        return println!("said: {}", transom::init().map(drop).unwrap_err());
    }
    let me = std::process::id();
    let folder = TempDir::new().unwrap();
    let file = std::fs::File::open(file(&folder, "else", "something else", 0o600)).unwrap();
    for (place, wrong) in [
        ("4194305,3".to_owned(), "No such file"),
        (format!("{me},999"), "No such file"),
        (format!("{me},0"), "it is not a file"),
        (format!("{me},{}", std::os::fd::AsRawFd::as_raw_fd(&file)), "it does not hold the secret"),
        ("3".to_owned(), "expected a process"),
        ("secret,3".to_owned(), "expected a process"),
    ] {
        let said = said(name, "rank", |command| {
            command.env("TRANSOM_HUB", "127.0.0.1:9").env("TRANSOM_SECRET", &place).env("TRANSOM_HOST", "a");
            command.env("TRANSOM_RANK", "0").env("TRANSOM_SIZE", "2").stdin(Stdio::null());
        });
        assert!(said.contains("TRANSOM_SECRET=") && said.contains(wrong), "{place}: {said}");
    }
}
