//! Teams of a job's ranks.

use super::*;

/// Splits a job: a team of the ranks with the same colour, ordered by `key`.
fn split(job: &Tcp, colour: Option<u64>, key: u64) -> Option<Tcp> {
    let mine = [colour.unwrap_or(u64::MAX), key];
    let wishes = job.all_gather(mine.map(u64::to_le_bytes).as_flattened()).unwrap();
    let mut members: Vec<_> = (0..job.size()).filter(|&rank| wishes[rank][..8] == wishes[job.rank()][..8]).collect();
    members.sort_by_key(|&rank| wishes[rank][8]);
    // Ranks without a colour take part in the exchange too.
    let mut meet = |mine: &[u8]| {
        let said = job.all_gather(mine)?;
        Ok(members.iter().map(|&rank| said[rank].clone()).collect())
    };
    match colour {
        Some(_) => Some(job.team(&members, &mut meet).unwrap()),
        None => meet(&[]).ok().and(None),
    }
}

#[test]
fn teams_exchange_independently() {
    let job = Job::start(5);
    on_all(job.all(), |rank| {
        let (me, odd) = (rank.rank(), rank.rank() % 2);
        // Rank 4 stays out. The others split by parity, highest rank first.
        let team = split(&rank, (me < 4).then_some(odd as u64), 10 - me as u64);
        let Some(team) = team else {
            assert_eq!(me, 4);
            return rank.barrier().unwrap();
        };
        assert_eq!((team.rank(), team.size()), (1 - me / 2, 2));
        for round in 0..10_usize {
            let said = team.all_gather(&[me as u8; 100][..round * (odd + 1)]).unwrap();
            assert_eq!(said, [vec![odd as u8 + 2; round * (odd + 1)], vec![odd as u8; round * (odd + 1)]]);
        }
        let alone = split(&team, Some(me as u64), 0).unwrap();
        assert_eq!(alone.all_gather(b"x").unwrap(), [b"x"]);
        rank.barrier().unwrap();
    });
}

#[test]
fn leaving_and_dying_end_the_teams() {
    let job = Job::start(4);
    on_all(job.all(), |rank| {
        let me = rank.rank();
        let pair = split(&rank, Some(me as u64 / 2), 0).unwrap();
        let all = split(&rank, Some(7), 0).unwrap();
        rank.barrier().unwrap();
        if me == 0 {
            drop(pair); // leaves the pair only
            assert_eq!(all.all_gather(&[]).unwrap().len(), 4);
            return rank.barrier().unwrap();
        }
        if me == 1 {
            assert!(matches!(pair.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
        }
        all.barrier().unwrap();
        rank.barrier().unwrap();
        if me == 2 {
            rank.cut();
        } else if me == 3 {
            assert!(matches!(pair.barrier(), Err(FabricError::PeerDied { rank: 0 })));
            let told = all.barrier().unwrap_err(); // rank 0 may have left before
            assert!(matches!(told, FabricError::PeerDied { rank: 2 } | FabricError::PeerLeft { .. }), "{told}");
        }
    });
}

#[test]
fn team_outlives_its_job() {
    let job = Job::start(2);
    on_all(job.all(), |rank| {
        let team = split(&rank, Some(0), 0).unwrap();
        if rank.rank() == 0 {
            drop(rank);
            team.barrier().unwrap();
            team.leave();
        } else {
            assert!(matches!(rank.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
            team.barrier().unwrap();
            assert!(matches!(team.barrier(), Err(FabricError::PeerLeft { rank: 0 })));
        }
    });
    within(|| job.hub.linger());
}
