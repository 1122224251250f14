//! Parts of the engine: each struct owns its state, and its methods change nothing else. A part knows neither
//! the engine nor the wire. It returns the actions to take, and the engine takes them. A public field is a
//! state machine that guards its own state.
//!
//! | part | of a peer | of the rank |
//! |---|---|---|
//! | `transmit` | `Transmit`: window, queues of packets | `TransmitList`: peers to post for |
//! | `receive` | `Inbound`: order, pieces of a message | `Matching`, in [`matching`](crate::matching) |
//! | `credits` | `Credits`: given, owned, reported values | `CreditPool`: budget, peers due or polled |
//! | `rings` | `Rings`: given and owned ring, refused mark | `Polling`: rings to poll, short receives in a row |
//! | `connections` | `Lanes`: rails up, asked for, connected | `Connections`: peers within the cap |
//! | `transfers` | `Transfers`: writes and reads, weights, tuner | |
//! | `failover` | `Failover`: requests of cut rails | |
//! | `requests` | | `Requests`: from start to completion |
//! | `failures` | | `Failures`: lost ranks, teams |
//! | `pipes` | | `Pipes`: open pipes, those that need turns |

pub mod connections;
pub mod credits;
pub mod failover;
pub mod failures;
pub mod pipes;
pub mod receive;
pub mod requests;
pub mod rings;
pub mod transfers;
pub mod transmit;

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

/// A value for peers of the same host, and one for the others: see [`Wire::is_near`](crate::Wire::is_near).
pub struct Each<T>([T; 2]);

impl<T> Each<T> {
    pub fn of(mut each: impl FnMut(bool) -> T) -> Each<T> {
        Each([each(false), each(true)])
    }

    pub fn both(&self) -> &[T; 2] {
        &self.0
    }
}

impl<T> Index<bool> for Each<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, near: bool) -> &T {
        &self.0[usize::from(near)]
    }
}

impl<T> IndexMut<bool> for Each<T> {
    #[inline(always)]
    fn index_mut(&mut self, near: bool) -> &mut T {
        &mut self.0[usize::from(near)]
    }
}

/// Removes and returns the items that `out` selects. All keep their order.
fn split_off<T>(of: &mut VecDeque<T>, out: impl Fn(&T) -> bool) -> Vec<T> {
    let (taken, kept): (Vec<T>, Vec<T>) = std::mem::take(of).into_iter().partition(out);
    *of = VecDeque::from(kept);
    taken
}
