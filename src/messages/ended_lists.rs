//! Lists of requests that have ended, one list for each set of requests.

use std::collections::{HashMap, VecDeque};

/// Open lists. A request puts its number on its list when it ends, so that no set looks at requests in flight.
#[derive(Default)]
pub(crate) struct EndedLists {
    lists: HashMap<u64, VecDeque<usize>>,
    /// Lists opened so far. No list gets the number of a closed one.
    opened: u64,
}

/// A list of [`EndedLists`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ListId(u64);

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
}
