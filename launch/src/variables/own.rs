//! The variables of the launcher, and those that it sets for ranks.

use super::{Seconds, SetBy, Variable, readable};
use crate::bootstrap::{Bootstrap, SecretPlace};
use crate::launcher::OutputPrefix;
use crate::launcher::agent_path::AgentPath;
use crate::listen_at::{ListenAt, Ports, Selector};
use crate::tcp::Addresses;
use std::net::SocketAddr;

/// All variables of this crate.
pub const TABLE: &[Variable] = &[
    GRACE,
    OUTPUT_PREFIX,
    BOOTSTRAP,
    SSH,
    AGENT,
    HUB_INTERFACE,
    HUB_PORTS,
    RANK,
    SIZE,
    LOCAL_RANK,
    LOCAL_SIZE,
    SHM,
    HUB,
    HUB_VIA,
    SECRET,
    HOST,
    NESTING,
    VERBOSE,
];

/// The variables that a launcher removes from its ranks' environment before it sets its own. They are those that an
/// outer launcher set, if this process is a rank itself, and the user's override of launcher detection.
pub(crate) fn removed_for_ranks() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.set_by == SetBy::Launcher || row.name == BOOTSTRAP.name).map(|row| row.name)
}

/// Grace period of the other ranks after the first failure.
pub const GRACE: Variable = Variable {
    name: "TRANSOM_GRACE",
    set_by: SetBy::User,
    meaning: "time that the other ranks have after the first failure to report their own errors, before SIGTERM",
    expected: "seconds, e.g. `2` or `0.5`",
    default: "2",
    check: readable::<Seconds>,
};

/// Selection of the output lines that are prefixed with their rank.
pub const OUTPUT_PREFIX: Variable = Variable {
    name: "TRANSOM_OUTPUT_PREFIX",
    set_by: SetBy::User,
    meaning: "output lines that the launcher prefixes with the rank that wrote them, e.g. `[2] `",
    expected: "`none`, `stderr` or `all`",
    default: "stderr; none for the only rank of a job",
    check: readable::<OutputPrefix>,
};

/// Launcher that started the program.
pub const BOOTSTRAP: Variable = Variable {
    name: "TRANSOM_BOOTSTRAP",
    set_by: SetBy::User,
    meaning: "launcher that started the program, if detection is wrong; transom's own launcher does not pass it on to ranks",
    expected: "`transom`, `pmix`, `pmi`, or `none` (each process is alone, or starts a job of its own)",
    default: "detected, in this order",
    check: readable::<Bootstrap>,
};

/// Command that starts ranks on other hosts.
pub const SSH: Variable = Variable {
    name: "TRANSOM_SSH",
    set_by: SetBy::User,
    meaning: "command with which `transom run` reaches a host; the host's name and the remote command are appended; unless set, `srun` reaches the nodes of the Slurm job in which the launcher runs",
    expected: "a program and its arguments, separated by spaces",
    default: "ssh -oBatchMode=yes -oServerAliveInterval=5 -oControlMaster=no",
    check: readable::<String>,
};

/// Program that starts ranks on other hosts.
pub const AGENT: Variable = Variable {
    name: "TRANSOM_AGENT",
    set_by: SetBy::User,
    meaning: "path of `transom` on hosts, which starts their ranks where it is installed in this version; elsewhere a shell script does",
    expected: "a path that begins with `/`, or `off` (the script)",
    default: "the path of the launching `transom`, else `transom` in the host's PATH",
    check: readable::<AgentPath>,
};

/// Rank of the process.
pub const RANK: Variable = Variable {
    name: "TRANSOM_RANK",
    set_by: SetBy::Launcher,
    meaning: "rank of this process",
    expected: "a number below TRANSOM_SIZE",
    default: "0, the only rank of a job of its own",
    check: readable::<usize>,
};

/// Number of ranks in the job.
pub const SIZE: Variable = Variable {
    name: "TRANSOM_SIZE",
    set_by: SetBy::Launcher,
    meaning: "number of ranks in the job",
    expected: "a number above 0",
    default: "1",
    check: readable::<usize>,
};

/// Number of the process among the ranks of its host.
pub const LOCAL_RANK: Variable = Variable {
    name: "TRANSOM_LOCAL_RANK",
    set_by: SetBy::Launcher,
    meaning: "number of this process among the ranks of its host, for scripts that choose a core, an adapter or a GPU",
    expected: "a number below TRANSOM_LOCAL_SIZE",
    default: "not set",
    check: readable::<usize>,
};

/// Number of ranks on the host.
pub const LOCAL_SIZE: Variable = Variable {
    name: "TRANSOM_LOCAL_SIZE",
    set_by: SetBy::Launcher,
    meaning: "number of ranks on the host of this process",
    expected: "a number above 0",
    default: "not set",
    check: readable::<usize>,
};

/// Location of the control block of a job on one machine.
pub const SHM: Variable = Variable {
    name: "TRANSOM_SHM",
    set_by: SetBy::Launcher,
    meaning: "location of the control block, the memory through which the ranks of a job on one machine join",
    expected: "process ID of the launcher, file descriptor and tag, separated by commas",
    default: "no control block",
    check: readable::<String>,
};

/// Addresses of the hub of a multi-host job.
pub const HUB: Variable = Variable {
    name: "TRANSOM_HUB",
    set_by: SetBy::Launcher,
    meaning: "TCP addresses at which the launcher's hub of a multi-host job listens",
    expected: "IP addresses with ports, e.g. `10.0.0.1:40000`, separated by commas",
    default: "a job on this machine",
    check: readable::<Addresses>,
};

/// Address at which the agent of a host accepts connections to the hub.
pub const HUB_VIA: Variable = Variable {
    name: "TRANSOM_HUB_VIA",
    set_by: SetBy::Launcher,
    meaning: "TCP address on this host at which its agent accepts connections to the hub; a rank tries it before those of the hub",
    expected: "an IP address with a port, e.g. `127.0.0.1:40000`",
    default: "no agent: the rank connects to the hub itself",
    check: readable::<SocketAddr>,
};

/// Interfaces that the hub of a job on several hosts listens on.
pub const HUB_INTERFACE: Variable = Variable {
    name: "TRANSOM_HUB_INTERFACE",
    set_by: SetBy::User,
    meaning: "the interface at whose address the hub of a job on several hosts accepts its ranks: that of `transom run`, or of rank 0 under another launcher",
    expected: "the name of an interface that `ip address` lists, e.g. `eth0`, or a subnet, e.g. `10.0.0.0/8`",
    default: "all interfaces; a rank tries the addresses in turn",
    check: readable::<Selector>,
};

/// Ports that the hub listens on.
pub const HUB_PORTS: Variable = Variable {
    name: "TRANSOM_HUB_PORTS",
    set_by: SetBy::User,
    meaning: "ports for the hubs of jobs on several hosts, one for each job that runs at the same time, for a firewall",
    expected: "two numbers from 1 to 65535, first and last, e.g. `47100-47109`",
    default: "a free port that the system selects",
    check: readable::<Ports>,
};

/// The interface and the ports at which the hub listens.
pub const LISTEN_AT: ListenAt = ListenAt { interface: &HUB_INTERFACE, ports: &HUB_PORTS };

/// Location of the job's secret.
pub const SECRET: Variable = Variable {
    name: "TRANSOM_SECRET",
    set_by: SetBy::Launcher,
    meaning: "location of the secret by which a rank of a multi-host job and the hub authenticate each other",
    expected: "process ID of a launcher's process on this host and file descriptor, separated by a comma",
    default: "a job on this machine",
    check: readable::<SecretPlace>,
};

/// Label of the host within the job.
pub const HOST: Variable = Variable {
    name: "TRANSOM_HOST",
    set_by: SetBy::Launcher,
    meaning: "name of the host within the job; ranks with different names share no memory",
    expected: "a name",
    default: "the machine's own identity",
    check: readable::<String>,
};

/// Number of launchers above the process.
pub const NESTING: Variable = Variable {
    name: "TRANSOM_NESTING",
    set_by: SetBy::Launcher,
    meaning: "number of launchers above this process, each started by a rank of the previous one; at most 3",
    expected: "a number",
    default: "0",
    check: readable::<usize>,
};

/// Request of a report of the chosen provider: `-v`.
pub const VERBOSE: Variable = Variable {
    name: "TRANSOM_VERBOSE",
    set_by: SetBy::Launcher,
    meaning: "rank 0 reports the provider of each host on stderr at the start, for `transom run -v`; the same at all ranks",
    expected: "`1`",
    default: "no report",
    check: readable::<u8>,
};
