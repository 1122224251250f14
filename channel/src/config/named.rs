//! Named configurations from papers, each as a text that a user could write.

/// A configuration that has a name.
#[derive(Debug)]
pub struct Named {
    /// Name in the text.
    pub name: &'static str,
    /// Meaning and source.
    pub meaning: &'static str,
    /// Fields that it sets.
    pub text: &'static str,
}

/// All named configurations. Other fields of a text apply after the named ones.
pub const NAMED: &[Named] = &[
    Named {
        name: "ics",
        meaning: "rings of MVAPICH (Liu, Wu, Panda 2003): 100 slots of 2 KiB, rendezvous by write",
        text: "ring_slots=100,ring_bytes=2048,rings=64,ring_after=10,window=128,eager=2008,zero_copy_from=2009,offer=no",
    },
    Named {
        name: "ipdps",
        meaning: "pipe of MPICH2 (Liu et al. 2004): chunks of 16 KiB, long buffers are read",
        text: "pipe=read,pipe_chunk=16384,pipe_chunks=16,pipe_zero_copy_from=32768",
    },
    Named {
        name: "multirail",
        meaning: "several rails (Liu, Vishnu, Panda 2004): packets by each rail in turn without rings, rendezvous by write, divided by measured times",
        text: "spread=round_robin,stripe=adaptive,stripe_from=8192,offer=no,rings=0",
    },
    Named {
        name: "aptus",
        meaning: "MVAPICH-Aptus (Koop, Jones, Panda 2008): datagrams to all, 16 connections, 8 rings, the rules of its slides",
        text: "paths=both,ring_slots=32,ring_bytes=2048,rings=8,ring_after=32,connections=16,connect_after=16,offer=no,rules=\
               MSG_SIZE <= 2048, RC-FP, MSG_SIZE <= 2008, UD-SR, MSG_SIZE <= 8192, RC-SR, MSG_SIZE <= 8192, UD-SR, \
               TRUE, RC-RDMA, TRUE, UD-ZCopy, TRUE, Copy-Based",
    },
    Named { name: "rc", meaning: "connections to all peers", text: "paths=rc" },
    Named { name: "ud", meaning: "datagrams only, without rings", text: "paths=ud,rings=0" },
];

pub(super) fn names() -> String {
    NAMED.iter().map(|named| named.name).collect::<Vec<_>>().join(", ")
}
