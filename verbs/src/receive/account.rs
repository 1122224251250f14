//! Which buffers are where, by their numbers, and what has come.

use super::{AT_ONCE, LONGEST, LOW, LOWEST, MORE, MOST};
use crate::wr::Completion;
use std::collections::{HashMap, VecDeque};

/// The account of a rank's buffers.
#[derive(Default)]
pub(super) struct Account {
    /// How many there are.
    all: usize,
    /// Not more than these can be with the adapter; fewer if queue pairs that broke took some along.
    posted: i64,
    /// To be handed over.
    free: Vec<u32>,
    came: VecDeque<(u32, What)>,
    pairs: HashMap<u32, Pair>,
}

struct Pair {
    peer: u32,
    /// What it had begun was told to have failed.
    flushed: bool,
}

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Message { number: u32, bytes: usize },
    Value(u32),
}

impl Account {
    /// There are so many more, and free; those before keep their numbers.
    pub fn add(&mut self, more: usize) {
        self.free.extend((self.all..self.all + more).map(|number| number as u32));
        self.all += more;
    }

    /// What comes by a queue pair of this number is a peer's from now on.
    pub fn expect(&mut self, queue_pair: u32, peer: u32) {
        self.pairs.insert(queue_pair, Pair { peer, flushed: false });
    }

    /// A queue pair is gone; `was_connected`: it may have had a buffer whose message did not come whole, and of which not
    /// every driver tells.
    pub fn forget(&mut self, queue_pair: u32, was_connected: bool) {
        if let Some(pair) = self.pairs.remove(&queue_pair)
            && was_connected
            && !pair.flushed
        {
            self.posted -= 1;
        }
    }

    /// The adapter is done with a buffer.
    pub fn completed(&mut self, completion: &Completion) {
        let number = completion.token.request();
        self.posted -= 1;
        let pair = self.pairs.get_mut(&completion.queue_pair);
        match (completion.result, completion.value, pair) {
            (Ok(()), None, Some(pair)) => {
                let bytes = completion.bytes.min(LONGEST);
                return self.came.push_back((pair.peer, What::Message { number, bytes }));
            }
            (Ok(()), Some(value), Some(pair)) => self.came.push_back((pair.peer, What::Value(value))),
            (_, _, pair) => pair.into_iter().for_each(|pair| pair.flushed = true),
        }
        self.free.push(number);
    }

    /// What came first of all that was not taken, and from whom.
    pub fn take(&mut self) -> Option<(u32, What)> {
        self.came.pop_front()
    }

    /// How much was not taken.
    pub fn waiting(&self) -> usize {
        self.came.len()
    }

    /// A buffer is free again. Whether it is time to hand those that are over.
    pub fn give(&mut self, number: u32) -> bool {
        self.free.push(number);
        self.are_many_free()
    }

    pub fn are_many_free(&self) -> bool {
        self.free.len() >= AT_ONCE
    }

    /// Nothing that came will be taken.
    pub fn discard(&mut self) {
        while let Some((_, what)) = self.came.pop_front() {
            if let What::Message { number, .. } = what {
                self.free.push(number);
            }
        }
    }

    /// Those that are free, to be handed over.
    pub fn post(&mut self) -> Vec<u32> {
        self.posted += self.free.len() as i64;
        std::mem::take(&mut self.free)
    }

    /// Whether more are needed, as some came just now or none did, and may be.
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
    fn what_comes_is_of_the_peer_whose_queue_pair_it_was_then() {
        let mut account = account();
        account.completed(&came(0, 70, 100));
        account.completed(&Completion { value: Some(5), ..came(1, 80, 0) });
        // The number goes to another, after what the first brought was settled.
        account.forget(70, true);
        account.expect(70, 9);
        account.completed(&came(2, 70, usize::MAX));
        assert_eq!(account.take(), Some((7, What::Message { number: 0, bytes: 100 })));
        assert_eq!(account.take(), Some((8, What::Value(5))));
        assert_eq!(account.take(), Some((9, What::Message { number: 2, bytes: LONGEST })), "no more than it has");
        assert_eq!((account.take(), account.post()), (None, vec![1]), "a value leaves its buffer as it is");
    }

    #[test]
    fn every_buffer_comes_back() {
        let mut account = account();
        let failed = Err(Failure::known(Why::Ended));
        account.completed(&Completion { result: failed, ..came(3, 70, 0) });
        account.completed(&came(4, 99, 10)); // of nobody
        account.completed(&came(5, 80, 10));
        assert_eq!(account.waiting(), 1);
        account.discard();
        assert_eq!((account.post(), account.waiting()), (vec![3, 4, 5], 0));
        assert!(
            (0..AT_ONCE as u32 - 1).all(|number| !account.give(number)) && account.give(7),
            "handed over by several"
        );
    }

    #[test]
    fn a_queue_pair_that_broke_may_have_taken_one_along() {
        let mut account = account();
        account.add(MORE);
        account.post();
        let left = |account: &Account| account.posted;
        assert_eq!(left(&account), (FIRST + MORE) as i64);
        account.forget(70, true);
        assert_eq!(left(&account), (FIRST + MORE) as i64 - 1, "nothing was told of it");
        account.forget(70, true);
        account.expect(71, 7);
        account.forget(71, false);
        account.completed(&Completion { result: Err(Failure::known(Why::Ended)), ..came(3, 80, 0) });
        account.forget(80, true);
        account.post();
        assert_eq!(left(&account), (FIRST + MORE) as i64 - 1, "never connected; told");
    }

    #[test]
    fn there_are_more_when_few_are_left_and_never_too_many() {
        let mut account = account();
        let mut all = FIRST;
        for _ in 0..2 * MOST {
            if account.is_low(true) {
                account.add(MORE);
                all += MORE;
            }
            account.post();
            account.completed(&came(0, 70, 8)); // and is not given back
        }
        assert!((MOST - MORE + 1..=MOST).contains(&all), "{all}");
        assert!(LOW as usize <= MORE, "one time suffices");
    }

    #[test]
    fn a_rank_that_is_sent_nothing_has_few() {
        let mut account = account();
        assert!(account.is_low(true) && !account.is_low(false));
        for pair in 0..FIRST as u32 / 2 {
            account.expect(pair, pair);
            account.forget(pair, true);
        }
        assert!(!account.is_low(false));
        account.forget(70, true);
        assert!(account.is_low(false), "queue pairs took them along, and nothing can come that would tell");
    }
}
