//! Connections between two ranks that also have datagrams. Both ranks make a connection when both have room,
//! and give it up when neither has anything in flight on it. Each side runs one state machine. Its messages
//! travel in packets, in order.
//!
//! The rank with more traffic asks. Its peer accepts or refuses, so that both keep their caps. If both ask,
//! both have accepted.
//!
//! A rank that needs the place for another peer leaves: it stops sending on the connection and says so after
//! all that it sent there. A peer with requests in flight answers [`Stay`](Say::Stay), and both continue.
//! Otherwise the peer stops as well and answers [`Left`](Say::Left). The rank handles that answer only after
//! all packets of the connection have arrived; the connection is then [`Gone`](Say::Gone) on both sides. If
//! both leave at once, the lower rank proceeds as if it had not asked to leave.

use crate::rendezvous::Unfit;

/// A message of the connection protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Say {
    /// Asks for a connection.
    Ask,
    /// Accepts the connection.
    Accept,
    /// Refuses the connection: no room.
    Refuse,
    /// Proposes to give the connection up. The sender sends nothing more on it.
    Leave,
    /// Agrees to give the connection up. The sender sends nothing more on it.
    Left,
    /// Declines to give the connection up: requests are in flight on it.
    Stay,
    /// Confirms that the connection is given up.
    Gone,
}

impl Say {
    /// All messages, ordered by their numbers in a packet.
    pub const ALL: [Say; 7] = [Say::Ask, Say::Accept, Say::Refuse, Say::Leave, Say::Left, Say::Stay, Say::Gone];
}

/// State of a connection on one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Connection {
    /// No connection.
    #[default]
    None,
    /// This side has asked, and has reserved room.
    Asked,
    /// Both sides have agreed on the connection.
    Held,
    /// This side has proposed to give the connection up, and sends nothing more on it.
    Leaving,
    /// This side has agreed to give the connection up.
    Left,
}

/// Actions that a message requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Then {
    /// Message to send in answer.
    pub say: Option<Say>,
    /// Change to the lanes.
    pub act: Option<Act>,
}

/// Change to the lanes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Connect the lanes and use them.
    Connect,
    /// The peer has refused: free the reserved room.
    Forget,
    /// Send nothing more on the lanes.
    Stop,
    /// Use the lanes again.
    Resume,
    /// Nothing more arrives on the lanes: disconnect them and free the room.
    Disconnect,
}

/// Local state that decides the answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// Room for one more connection is available.
    pub has_room: bool,
    /// Nothing but packets is in flight on the connection.
    pub is_quiet: bool,
    /// If both sides leave at once, this side proceeds as if it had not asked to leave.
    pub yields: bool,
}

impl Connection {
    /// Starts a request for a connection, for which this side has reserved room. `None` unless there is no
    /// connection.
    pub fn ask(&mut self) -> Option<Say> {
        (*self == Connection::None).then(|| {
            *self = Connection::Asked;
            Say::Ask
        })
    }

    /// Starts to give the connection up for another one. Requires that nothing is in flight on it. `None`
    /// unless it is held.
    pub fn leave(&mut self) -> Option<Say> {
        (*self == Connection::Held).then(|| {
            *self = Connection::Leaving;
            Say::Leave
        })
    }

    /// Handles a message from the peer.
    ///
    /// ```
    /// use transom_channel::connection::{Act, Connection, Here, Say, Then};
    /// let mut asked = Connection::default();
    /// let here = Here { has_room: false, is_quiet: true, yields: false };
    /// assert_eq!(asked.told(Say::Ask, here), Ok(Then { say: Some(Say::Refuse), act: None }));
    /// let here = Here { has_room: true, ..here };
    /// assert_eq!(asked.told(Say::Ask, here), Ok(Then { say: Some(Say::Accept), act: Some(Act::Connect) }));
    /// assert_eq!(asked, Connection::Held);
    /// ```
    ///
    /// # Errors
    /// [`Unfit`] if the message is not valid in this state.
    pub fn told(&mut self, say: Say, here: Here) -> Result<Then, Unfit> {
        use Connection::*;
        let (to, say, act) = match (*self, say) {
            (None, Say::Ask) if here.has_room => (Held, Some(Say::Accept), Some(Act::Connect)),
            (None, Say::Ask) => (None, Some(Say::Refuse), Option::None),
            (Asked, Say::Ask | Say::Accept) => (Held, Option::None, Some(Act::Connect)),
            (Asked, Say::Refuse) => (None, Option::None, Some(Act::Forget)),
            (Held, Say::Leave) if here.is_quiet => (Left, Some(Say::Left), Some(Act::Stop)),
            (Held, Say::Leave) => (Held, Some(Say::Stay), Option::None),
            (Leaving, Say::Leave) if here.yields => (Left, Some(Say::Left), Option::None),
            (Leaving, Say::Leave) => (Leaving, Option::None, Option::None),
            (Leaving, Say::Stay) => (Held, Option::None, Some(Act::Resume)),
            (Leaving, Say::Left) => (None, Some(Say::Gone), Some(Act::Disconnect)),
            (Left, Say::Gone) => (None, Option::None, Some(Act::Disconnect)),
            _ => return Err(Unfit),
        };
        *self = to;
        Ok(Then { say, act })
    }

    /// Returns true if the connection takes no room.
    pub fn is_none(self) -> bool {
        self == Connection::None
    }

    /// Returns true if both sides have agreed and neither leaves, as far as this side knows.
    pub fn is_held(self) -> bool {
        self == Connection::Held
    }
}
