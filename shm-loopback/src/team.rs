//! Teams: jobs made of some ranks of a job.

use crate::control::Control;
use crate::fabric::Region;
use crate::loopback::Loopback;
use std::sync::Arc;
use transom_locks::Rank;
use transom_windows::{Fabric, FabricError, OobExchange};

/// An exchange among the members of a future team: returns what each of them passes, in team order, or an error at all
/// of them.
pub type Meet<'a> = dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, FabricError> + 'a;

/// Exchanges needed to make a team.
const MEETINGS: usize = 2;

impl Loopback {
    /// Collective: makes teams of the ranks that pass the same colour, numbered by `key`, then by rank; `None` for
    /// ranks without a colour. A team is a job of its own, with its own collectives, memory and rank numbers, which
    /// errors use.
    ///
    /// # Errors
    /// The errors of [`Fabric::allocate`] and [`Fabric::attach`], at all ranks of a team if at one.
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::Loopback;
    /// use transom_windows::OobExchange;
    /// let ranks: Vec<_> = Loopback::threads(3)?.into_iter().map(|rank| std::thread::spawn(move || {
    ///     // Even ranks, the highest first; rank 1 has no colour.
    ///     let colour = (rank.rank() % 2 == 0).then_some(7);
    ///     let team = rank.split(colour, 10 - rank.rank() as u64).unwrap();
    ///     team.map(|team| (team.rank(), team.size()))
    /// })).collect();
    /// let teams: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(teams, [Some((1, 2)), None, Some((0, 2))]);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<Self>, FabricError> {
        let mine = [u64::from(colour.is_some()), colour.unwrap_or(0), key];
        let wishes = self.all_gather(mine.map(u64::to_le_bytes).as_flattened())?;
        if let Some(rank) = wishes.iter().position(|wish| wish.len() != size_of_val(&mine)) {
            let why = format!("split: rank {rank} makes a different collective call, perhaps for a window or value");
            return Err(FabricError::Misuse { why });
        }
        let wish = |rank: Rank| {
            let (numbers, _) = wishes[rank].as_chunks::<8>();
            let number = |at: usize| numbers.get(at).map_or(0, |number| u64::from_le_bytes(*number));
            (number(0), number(1), number(2))
        };
        let same = |rank: &Rank| (wish(*rank).0, wish(*rank).1) == (mine[0], mine[1]);
        let mut members: Vec<Rank> = (0..self.size()).filter(same).collect();
        members.sort_by_key(|&rank| (wish(rank).2, rank));
        // Ranks without a colour take part in the exchanges of the others.
        let mut meet = |mine: &[u8]| {
            let mut said = self.all_gather(mine)?;
            Ok(members.iter().map(|&rank| std::mem::take(&mut said[rank])).collect())
        };
        match colour {
            Some(_) => self.team(&members, &mut meet).map(Some),
            None => (0..MEETINGS).try_for_each(|_| meet(&[]).map(drop)).map(|()| None),
        }
    }

    /// Makes a team of these ranks, in this order, this one among them; all of them call it, and no other rank need.
    /// `meet` is called twice. It returns what each member passes, in team order, or an error at all of them.
    ///
    /// # Errors
    /// The errors of `meet`, [`Fabric::allocate`] and [`Fabric::attach`], at all ranks of the team if at one.
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::Loopback;
    /// use transom_windows::OobExchange;
    /// let job = Loopback::alone()?;
    /// let team = job.team(&[0], &mut |mine| Ok(vec![mine.to_vec()]))?; // with more ranks, by messages for example
    /// assert_eq!((team.rank(), team.size()), (0, 1));
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let made = self.make_team(members[0] == self.rank(), members.len());
        let keys = meet(made.as_ref().map_or(&[], |made| made.as_ref().map_or(&[], |(_, key)| key)))?;
        let joined = made.and_then(|block| Ok((self.join_team(members, &keys[0])?, block)));
        // Every member has written its process number, or has failed.
        let failed = meet(&[u8::from(joined.is_err())])?;
        let (team, _) = joined?;
        if let Some(place) = failed.iter().position(|failed| failed[..] != [0]) {
            return Err(FabricError::GivenUp { rank: members[place] });
        }
        team.0.control.watch_with(&self.0.control, members);
        let mut known = self.0.teams();
        known.retain(|team| team.strong_count() > 0);
        known.push(Arc::downgrade(&team.0));
        drop(known);
        Ok(team)
    }

    /// The control block of a team, made by its first member.
    fn make_team(&self, first: bool, size: usize) -> Result<Option<(Region, Vec<u8>)>, FabricError> {
        if !first {
            return Ok(None);
        }
        let (region, key) = self.allocate(Control::bytes(size)?)?;
        Control::create(region.view().memory().clone(), size);
        Ok(Some((region, key)))
    }

    fn join_team(&self, members: &[Rank], key: &[u8]) -> Result<Self, FabricError> {
        let view = self.attach(members[0], key, Control::bytes(members.len())?)?;
        let control = Control::open(view.memory().clone(), members.len())?;
        // Other teams use the same cores.
        control.set_oversubscribed(self.0.control.is_oversubscribed());
        let rank = members.iter().position(|&rank| rank == self.rank()).expect("a rank has its own colour");
        Self::member(rank, Arc::new(control), self.0.blocks.clone(), self.0.across_processes, self.0.progress.clone())
    }
}

#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn dropped_teams_are_forgotten() {
        let ranks = Loopback::threads(2).unwrap().into_iter().map(|rank| {
            std::thread::spawn(move || {
                let kept = rank.split(Some(1), 0).unwrap().expect("a rank with a colour is in the team");
                (0..50).for_each(|_| drop(rank.split(Some(1), 0).unwrap()));
                assert!(rank.0.teams().len() <= 2, "{}", rank.0.teams().len());
                rank.leave();
                assert!(kept.has_left(kept.rank()), "a rank leaves its teams with its job");
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}
