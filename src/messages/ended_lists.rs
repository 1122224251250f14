//! Lists of requests that have ended, one list for each set of requests.

use std::collections::{HashMap, VecDeque};
use transom_channel::Id;

/// Open lists. A request puts its number on its list when it ends, so that no set looks at requests in flight.
#[derive(Default)]
pub(crate) struct EndedLists {
    lists: HashMap<u64, VecDeque<usize>>,
    /// Lists opened so far. No list gets the number of a closed one.
    opened: u64,
    /// Messages that have a list, by their places in the engine. An entry of a message that is gone stays until its place is used again.
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

    /// Closes a list. Requests that end later put nothing on it.
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

    /// Takes the number that was put on the list first.
    pub fn pop(&mut self, ListId(list): ListId) -> Option<usize> {
        self.lists.get_mut(&list)?.pop_front()
    }

    /// Whether no message has a list.
    pub fn have_no_messages(&self) -> bool {
        self.messages.is_empty()
    }

    /// Has a message in flight put a number on a list when it ends.
    pub fn add_message(&mut self, message: Id, list: ListId, number: usize) {
        if self.messages.len() <= message.index() {
            self.messages.resize(message.index() + 1, None);
        }
        self.messages[message.index()] = Some(Listed { message, list, number });
    }

    /// A message has ended.
    pub fn end_message(&mut self, message: Id) {
        if let Some(Listed { list, number, .. }) = self.take(message) {
            self.push(list, number);
        }
    }

    /// Has a message put nothing on a list.
    pub fn remove_message(&mut self, message: Id) {
        self.take(message);
    }

    fn take(&mut self, message: Id) -> Option<Listed> {
        self.messages.get_mut(message.index())?.take_if(|listed| listed.message == message)
    }
}
