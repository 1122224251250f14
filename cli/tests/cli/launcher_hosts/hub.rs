//! The interface and the ports at which the hub of a job on several hosts accepts ranks.

use super::{Call, Ended};
use std::net::TcpListener;

/// Prints the addresses of the hub, which a rank has in its environment.
fn hub(interface: &str, ports: &str) -> Ended {
    let call = Call::start_with(&["a,b", "-n", "2", "--", "sh", "-c", "echo $TRANSOM_HUB"], |command| {
        command.env("TRANSOM_HUB_INTERFACE", interface).env("TRANSOM_HUB_PORTS", ports);
    });
    call.end()
}

#[test]
fn hub_listens_at_interface_and_first_free_port() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = format!("{port}-{}", port.saturating_add(50));
    let ended = hub("127.0.0.0/8", &ports);
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 2), "{ended:?}");
    for line in &ended.lines {
        let (address, found) = line.rsplit_once(':').unwrap();
        let found: u16 = found.parse().unwrap();
        assert!(address == "127.0.0.1" && found > port && found <= port.saturating_add(50), "{line}");
    }
    let ended = hub("127.0.0.0/8", &format!("{port}-{port}"));
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(&format!("a port of TRANSOM_HUB_PORTS={port}-{port}")), "{}", ended.stderr);
}

#[test]
fn hub_interface_that_does_not_exist_is_named() {
    let ended = hub("nosuch0", "47100-47199");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let text = "TRANSOM_HUB_INTERFACE=nosuch0 selects no address of this machine, which has ";
    assert!(ended.stderr.contains(text), "{}", ended.stderr);
}
