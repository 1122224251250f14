//! The variables of the launcher, and those that it sets for ranks.

use super::{Seconds, SetBy, Variable, readable};
use crate::bootstrap::{Bootstrap, SecretPlace};
use crate::launcher::Tag;
use crate::tcp::Addresses;

/// The variables of this crate.
pub const TABLE: &[Variable] = &[GRACE, TAG, BOOTSTRAP, SSH, RANK, SIZE, SHM, HUB, SECRET, HOST, NESTING];

/// The variables that a launcher removes from the environment of its ranks before it sets its own: those of another
/// launcher, in one of whose ranks this one may run, and the one by which a user may override what started a process.
pub(crate) fn removed_for_ranks() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|row| row.set_by == SetBy::Launcher || row.name == BOOTSTRAP.name).map(|row| row.name)
}

/// TRANSOM_GRACE.
pub const GRACE: Variable = Variable {
    name: "TRANSOM_GRACE",
    set_by: SetBy::User,
    meaning: "how long the other ranks may go on after the first failure, to report their own errors",
    expected: "seconds, e.g. `2` or `0.5`",
    default: "2",
    check: readable::<Seconds>,
};

/// TRANSOM_TAG.
pub const TAG: Variable = Variable {
    name: "TRANSOM_TAG",
    set_by: SetBy::User,
    meaning: "which lines of the ranks' output the launcher tags with the rank that wrote them, e.g. `[2] `",
    expected: "`none`, `stderr` or `all`",
    default: "stderr; none for the only rank of a job",
    check: readable::<Tag>,
};

/// TRANSOM_BOOTSTRAP.
pub const BOOTSTRAP: Variable = Variable {
    name: "TRANSOM_BOOTSTRAP",
    set_by: SetBy::User,
    meaning: "which launcher started the program, if that is not found out right; transom's own launcher removes it",
    expected: "`transom`, `pmix`, `pmi`, or `none` (each process is alone, or starts a job of its own)",
    default: "found out, in this order",
    check: readable::<Bootstrap>,
};

/// TRANSOM_SSH.
pub const SSH: Variable = Variable {
    name: "TRANSOM_SSH",
    set_by: SetBy::User,
    meaning: "what `transom run --hosts` starts ranks with; host and command are added",
    expected: "a program and its arguments, with spaces between",
    default: "ssh -oBatchMode=yes -oServerAliveInterval=5 -oControlMaster=no",
    check: readable::<String>,
};

/// TRANSOM_RANK.
pub const RANK: Variable = Variable {
    name: "TRANSOM_RANK",
    set_by: SetBy::Launcher,
    meaning: "which rank the process is",
    expected: "a number below TRANSOM_SIZE",
    default: "the only rank, of a job of its own",
    check: readable::<usize>,
};

/// TRANSOM_SIZE.
pub const SIZE: Variable = Variable {
    name: "TRANSOM_SIZE",
    set_by: SetBy::Launcher,
    meaning: "how many ranks the job has",
    expected: "a number above 0",
    default: "1",
    check: readable::<usize>,
};

/// TRANSOM_SHM.
pub const SHM: Variable = Variable {
    name: "TRANSOM_SHM",
    set_by: SetBy::Launcher,
    meaning: "what leads to the control block, the memory that the ranks of a job on one machine share from the start",
    expected: "the launcher's process, its descriptor and a tag, with commas between",
    default: "no control block",
    check: readable::<String>,
};

/// TRANSOM_HUB.
pub const HUB: Variable = Variable {
    name: "TRANSOM_HUB",
    set_by: SetBy::Launcher,
    meaning: "where the hub of a job on several hosts listens, at the launcher",
    expected: "addresses with ports, with commas between",
    default: "a job on this machine",
    check: readable::<Addresses>,
};

/// TRANSOM_SECRET.
pub const SECRET: Variable = Variable {
    name: "TRANSOM_SECRET",
    set_by: SetBy::Launcher,
    meaning: "from where a rank of a job on several hosts takes what it proves to the hub to know",
    expected: "a process of the launcher on this host and a descriptor of it, with a comma between",
    default: "a job on this machine",
    check: readable::<SecretPlace>,
};

/// TRANSOM_HOST.
pub const HOST: Variable = Variable {
    name: "TRANSOM_HOST",
    set_by: SetBy::Launcher,
    meaning: "which of the hosts of a job this is; ranks with different ones share no memory",
    expected: "a name",
    default: "the machine's own identity",
    check: readable::<String>,
};

/// TRANSOM_NESTING.
pub const NESTING: Variable = Variable {
    name: "TRANSOM_NESTING",
    set_by: SetBy::Launcher,
    meaning: "how many launchers are above this process, each a rank of the one before; more than 3 are refused",
    expected: "a number",
    default: "0",
    check: readable::<usize>,
};
