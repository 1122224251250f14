//! The account of receive buffers by number, and of received messages.

use super::{AT_ONCE, LONGEST, LOW, LOWEST, MORE, MOST};
use crate::wr::Completion;
use foldhash::fast::RandomState;
use std::collections::{HashMap, VecDeque};

/// The account of a rank's receive buffers.
#[derive(Default)]
pub(super) struct Account {
    /// Number of buffers.
    all: usize,
    /// Upper bound of the buffers posted to the adapter. Broken queue pairs may have consumed some.
    posted: i64,
    /// Buffers to be posted.
    free: Vec<u32>,
    came: VecDeque<(u32, ReceivedItem)>,
    pairs: HashMap<u32, Pair, RandomState>,
}

struct Pair {
    peer: u32,
    /// A flushed receive was reported for this queue pair.
    flushed: bool,
}

/// A received item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceivedItem {
    Message { number: u32, bytes: usize },
    Value(u32),
}

impl Account {
    /// Adds `more` free buffers; existing buffers keep their numbers.
    pub fn add(&mut self, more: usize) {
        self.free.extend((self.all..self.all + more).map(|number| number as u32));
        self.all += more;
    }

    /// Assigns a queue pair number to a peer.
    pub fn expect(&mut self, queue_pair: u32, peer: u32) {
        self.pairs.insert(queue_pair, Pair { peer, flushed: false });
    }

    /// Removes a queue pair. If it `was_connected`, it may have consumed a buffer for an incomplete message, which not
    /// every driver reports.
    pub fn forget(&mut self, queue_pair: u32, was_connected: bool) {
        if let Some(pair) = self.pairs.remove(&queue_pair)
            && was_connected
            && !pair.flushed
        {
            self.posted -= 1;
        }
    }

    /// Records the completion of a receive.
    pub fn completed(&mut self, completion: &Completion) {
        let number = completion.token.request();
        self.posted -= 1;
        let pair = self.pairs.get_mut(&completion.queue_pair);
        match (completion.result, completion.value, pair) {
            (Ok(()), None, Some(pair)) => {
                let bytes = completion.bytes.min(LONGEST);
                return self.came.push_back((pair.peer, ReceivedItem::Message { number, bytes }));
            }
            (Ok(()), Some(value), Some(pair)) => self.came.push_back((pair.peer, ReceivedItem::Value(value))),
            (_, _, pair) => pair.into_iter().for_each(|pair| pair.flushed = true),
        }
        self.free.push(number);
    }

    /// Takes the oldest received item, with its sender.
    pub fn take(&mut self) -> Option<(u32, ReceivedItem)> {
        self.came.pop_front()
    }

    /// Number of received items not yet taken.
    pub fn waiting(&self) -> usize {
        self.came.len()
    }

    /// Frees a buffer; returns whether it is time to post the free buffers.
    pub fn give(&mut self, number: u32) -> bool {
        self.free.push(number);
        self.are_many_free()
    }

    pub fn are_many_free(&self) -> bool {
        self.free.len() >= AT_ONCE
    }

    /// Drops all received items.
    pub fn discard(&mut self) {
        while let Some((_, what)) = self.came.pop_front() {
            if let ReceivedItem::Message { number, .. } = what {
                self.free.push(number);
            }
        }
    }

    /// Takes the free buffers, to be posted.
    pub fn post(&mut self) -> Vec<u32> {
        self.posted += self.free.len() as i64;
        std::mem::take(&mut self.free)
    }

    /// Returns whether more buffers are needed. `some_came`: messages arrived just now.
    pub fn is_low(&self, some_came: bool) -> bool {
        self.posted < if some_came { LOW } else { LOWEST } && self.all + MORE <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::super::FIRST;
    use super::*;
    use crate::wr::{Failure, Token, Why};

    fn came(number: u32, queue_pair: u32, bytes: usize) -> Completion {
        Completion { token: Token::new(0, number.into()), queue_pair, bytes, value: None, result: Ok(()) }
    }

    fn account() -> Account {
        let mut account = Account::default();
        account.add(FIRST);
        assert_eq!(account.post(), (0..FIRST as u32).collect::<Vec<_>>());
        account.expect(70, 7);
        account.expect(80, 8);
        account
    }

    #[test]
    fn message_belongs_to_the_peer_of_its_queue_pair() {
        let mut account = account();
        account.completed(&came(0, 70, 100));
        account.completed(&Completion { value: Some(5), ..came(1, 80, 0) });
        // The number is reused by another peer after the first one's messages were recorded.
        account.forget(70, true);
        account.expect(70, 9);
        account.completed(&came(2, 70, usize::MAX));
        assert_eq!(account.take(), Some((7, ReceivedItem::Message { number: 0, bytes: 100 })));
        assert_eq!(account.take(), Some((8, ReceivedItem::Value(5))));
        assert_eq!(
            account.take(),
            Some((9, ReceivedItem::Message { number: 2, bytes: LONGEST })),
            "at most the buffer's length"
        );
        assert_eq!((account.take(), account.post()), (None, vec![1]), "a value frees its buffer at once");
    }

    #[test]
    fn receive_buffers_return_after_any_completion() {
        let mut account = account();
        let failed = Err(Failure::known(Why::Ended));
        account.completed(&Completion { result: failed, ..came(3, 70, 0) });
        account.completed(&came(4, 99, 10)); // an unknown queue pair
        account.completed(&came(5, 80, 10));
        assert_eq!(account.waiting(), 1);
        account.discard();
        assert_eq!((account.post(), account.waiting()), (vec![3, 4, 5], 0));
        assert!((0..AT_ONCE as u32 - 1).all(|number| !account.give(number)) && account.give(7), "posted in batches");
    }

    #[test]
    fn broken_queue_pair_may_have_consumed_a_buffer() {
        let mut account = account();
        account.add(MORE);
        account.post();
        let left = |account: &Account| account.posted;
        assert_eq!(left(&account), (FIRST + MORE) as i64);
        account.forget(70, true);
        assert_eq!(left(&account), (FIRST + MORE) as i64 - 1, "its receive was not reported");
        account.forget(70, true);
        account.expect(71, 7);
        account.forget(71, false);
        account.completed(&Completion { result: Err(Failure::known(Why::Ended)), ..came(3, 80, 0) });
        account.forget(80, true);
        account.post();
        assert_eq!(left(&account), (FIRST + MORE) as i64 - 1, "one was never connected, the other was reported");
    }

    #[test]
    fn buffers_grow_when_low_and_are_limited() {
        let mut account = account();
        let mut all = FIRST;
        for _ in 0..2 * MOST {
            if account.is_low(true) {
                account.add(MORE);
                all += MORE;
            }
            account.post();
            account.completed(&came(0, 70, 8)); // not given back
        }
        assert!((MOST - MORE + 1..=MOST).contains(&all), "{all}");
        assert!(LOW as usize <= MORE, "one growth suffices");
    }

    #[test]
    fn rank_without_messages_has_few_buffers() {
        let mut account = account();
        assert!(account.is_low(true) && !account.is_low(false));
        for pair in 0..FIRST as u32 / 2 {
            account.expect(pair, pair);
            account.forget(pair, true);
        }
        assert!(!account.is_low(false));
        account.forget(70, true);
        assert!(account.is_low(false), "queue pairs consumed the buffers, so no message could trigger growth");
    }
}
