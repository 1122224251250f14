//! Lists of requests that have ended, one list for each set of requests.

use std::collections::{HashMap, VecDeque};
use transom_channel::Id;

/// The open lists. A request puts its number on its list when it ends, so that no set polls requests in flight.
#[derive(Default)]
pub(crate) struct EndedLists {
    lists: HashMap<u64, VecDeque<usize>>,
    /// Number of lists opened so far; list numbers are never reused.
    opened: u64,
    /// Messages that have a list, indexed by their slot in the engine. The entry of a message that has ended stays
    /// until its slot is reused.
    messages: Vec<Option<Listed>>,
}

/// A list of [`EndedLists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListId(u64);

#[derive(Clone, Copy)]
struct Listed {
    message: Id,
    list: ListId,
    number: usize,
}

impl EndedLists {
    /// Opens an empty list.
    pub fn open(&mut self) -> ListId {
        self.opened += 1;
        self.lists.insert(self.opened, VecDeque::new());
        ListId(self.opened)
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lists.len()
    }

    /// Closes a list. Requests that end later are not listed.
    pub fn close(&mut self, ListId(list): ListId) {
        self.lists.remove(&list);
        if self.lists.is_empty() {
            self.messages = Vec::new();
        }
    }

    /// Puts a number on a list, unless the list is closed.
    pub fn push(&mut self, ListId(list): ListId, number: usize) {
        if let Some(ended) = self.lists.get_mut(&list) {
            ended.push_back(number);
        }
    }

    /// Takes the oldest number of the list.
    pub fn pop(&mut self, ListId(list): ListId) -> Option<usize> {
        self.lists.get_mut(&list)?.pop_front()
    }

    /// Returns true if no message has a list.
    pub fn have_no_messages(&self) -> bool {
        self.messages.is_empty()
    }

    /// Makes a message in flight put `number` on `list` when it ends.
    pub fn add_message(&mut self, message: Id, list: ListId, number: usize) {
        if self.messages.len() <= message.index() {
            self.messages.resize(message.index() + 1, None);
        }
        self.messages[message.index()] = Some(Listed { message, list, number });
    }

    /// Records the end of a message.
    pub fn end_message(&mut self, message: Id) {
        if let Some(Listed { list, number, .. }) = self.take(message) {
            self.push(list, number);
        }
    }

    /// Removes a message from its list before it ends.
    pub fn remove_message(&mut self, message: Id) {
        self.take(message);
    }

    fn take(&mut self, message: Id) -> Option<Listed> {
        self.messages.get_mut(message.index())?.take_if(|listed| listed.message == message)
    }
}
