//! Environment variables that select addresses and ports. None is needed where all interfaces may be used.

use transom_launch::variables::{SetBy, Variable, readable};
use transom_launch::{ListenAt, Ports, Selector};

/// All variables of this crate.
pub const TABLE: &[Variable] = &[INTERFACE, PORTS];

/// Interfaces that ranks listen on.
pub const INTERFACE: Variable = Variable {
    name: "TRANSOM_TCP_INTERFACE",
    set_by: SetBy::User,
    meaning: "TCP: the interface at whose address each rank accepts connections; ranks of different hosts may have different ones",
    expected: "the name of an interface that `ip address` lists, e.g. `eth0`, or a subnet, e.g. `10.0.0.0/8`",
    default: "all interfaces; a peer tries the addresses in turn",
    check: readable::<Selector>,
};

/// Ports that ranks listen on.
pub const PORTS: Variable = Variable {
    name: "TRANSOM_TCP_PORTS",
    set_by: SetBy::User,
    meaning: "TCP: the ports on which ranks accept connections, one each: as many as a host has ranks, for a firewall",
    expected: "two numbers from 1 to 65535, first and last, e.g. `47000-47099`",
    default: "a free port that the system selects",
    check: readable::<Ports>,
};

/// The interface and the ports at which a rank listens.
pub const LISTEN_AT: ListenAt = ListenAt { interface: &INTERFACE, ports: &PORTS };
