//! The connections between two ranks that have datagrams too: made when both have room for them, given up when both have nothing under
//! way there. One machine on each side, told of by packets that come in order.
//!
//! Who speaks much asks; who is asked accepts or refuses, so that both keep their caps. Two that ask each other have both accepted.
//! Who needs the place for another leaves: it sends nothing more by the connection and says so, behind all that it has sent. The
//! other stays if it has something under way, and both go on; else it does the same, and has [left](Say::Left). When that is handled,
//! all that came by the connection has come, and it is [gone](Say::Gone) on both sides. Of two that leave at once the lower rank
//! goes on as if it had not.

use crate::rendezvous::Unfit;

/// What is said of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Say {
    /// Let us connect.
    Ask,
    /// Yes.
    Accept,
    /// No: there is no room.
    Refuse,
    /// I send nothing more there; let us give it up.
    Leave,
    /// Nor do I.
    Left,
    /// No: something is under way there.
    Stay,
    /// It is given up.
    Gone,
}

impl Say {
    /// In the order of their numbers in a packet.
    pub const ALL: [Say; 7] = [Say::Ask, Say::Accept, Say::Refuse, Say::Leave, Say::Left, Say::Stay, Say::Gone];
}

/// Where one side stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Connection {
    /// There is none.
    #[default]
    None,
    /// This side has asked, and has kept room.
    Asked,
    /// Both have agreed.
    Held,
    /// This side sends nothing more there, and has said so.
    Leaving,
    /// This side has answered so.
    Left,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Then {
    /// The answer.
    pub say: Option<Say>,
    /// And beside that.
    pub act: Option<Act>,
}

/// What is to be done with the lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Have them connected, and used.
    Connect,
    /// The peer has refused: the room is free.
    Forget,
    /// Nothing more goes there.
    Stop,
    /// They can be used again.
    Resume,
    /// Nothing more comes there: give them up, and the room.
    Disconnect,
}

/// What a side knows when it is told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Here {
    /// There is room for one more.
    pub has_room: bool,
    /// Nothing is under way there but packets.
    pub is_quiet: bool,
    /// Of two that leave at once this one goes on as if it had not.
    pub yields: bool,
}

impl Connection {
    /// This side wants it, and has kept room.
    pub fn ask(&mut self) -> Option<Say> {
        (*self == Connection::None).then(|| {
            *self = Connection::Asked;
            Say::Ask
        })
    }

    /// This side wants the room for another, and has nothing under way there.
    pub fn leave(&mut self) -> Option<Say> {
        (*self == Connection::Held).then(|| {
            *self = Connection::Leaving;
            Say::Leave
        })
    }

    /// The peer has said something.
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
    /// Nobody says that there.
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

    /// It takes no room.
    pub fn is_none(self) -> bool {
        self == Connection::None
    }

    /// Both have agreed, and neither leaves, as far as this side knows.
    pub fn is_held(self) -> bool {
        self == Connection::Held
    }
}
