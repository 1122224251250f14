//! Steps of requests in a world.

use super::super::machine::ConnectionState;
use super::adapter::Refusal;
use super::traffic::Traffic;
use super::world::{Step, World};

impl World {
    /// Executes a step of requests; `None` if the step is of another kind.
    pub fn carries(&mut self, side: usize, step: Step) -> Option<Result<(), String>> {
        let [first, second] = &mut self.sides;
        let (me, peer) = if side == 0 { (first, second) } else { (second, first) };
        let last = me.made.last_mut();
        Some(match step {
            Step::Post(what) => {
                me.traffic.post(what, last.expect("attached"));
                Ok(())
            }
            Step::Answer => me.traffic.answered(last.expect("attached")),
            Step::Execute(at) => {
                let mine = &me.made[at];
                let theirs = peer.made.iter_mut().find(|theirs| Traffic::can_execute(mine, theirs));
                me.traffic.execute(mine, theirs.expect("it can"))
            }
            _ => return None,
        })
    }

    /// Checks that all posted requests complete once the network delivers everything.
    pub fn finishes(&self) -> Result<(), String> {
        let mut world = self.clone();
        for round in 0..8 {
            for side in 0..2 {
                if world.sides[side].traffic.is_finished() {
                    continue;
                }
                let step = match world.sides[side].machine.state() {
                    // No answer arrived: the connection breaks.
                    ConnectionState::Ready { .. } if round > 0 => {
                        world.budget.losses += 1;
                        Step::PeerFailure
                    }
                    ConnectionState::Ready { .. } | ConnectionState::Failed(_) => continue,
                    _ => Step::Want,
                };
                let mut under_way = vec![(side, step)];
                while let Some((side, step)) = under_way.pop() {
                    let (after, sent) = world.after(side, step, Refusal::None).expect("nothing is refused")?;
                    world = after;
                    under_way.extend(sent.into_iter().map(|message| (1 - side, Step::Hear(message))));
                }
            }
            for side in [0, 1, 0, 1] {
                let moves = |step: &Step| matches!(step, Step::Execute(_) | Step::Answer);
                while let Some(step) = world.steps(side).into_iter().rev().find(moves) {
                    world = world.after(side, step, Refusal::None).expect("nothing is refused")?.0;
                }
            }
        }
        match (0..2).find(|&side| !world.sides[side].traffic.is_finished()) {
            Some(side) => Err(format!("requests of side {side} do not end: {self:#?} becomes {world:#?}")),
            None => world.sides.iter().try_for_each(|side| side.traffic.is_right()),
        }
    }
}
