//! The time that requests take: at the processor of the sender, in its queue, on the lane, and in the adapters of both ends.

use super::Adapter;
use super::net::{Flight, Happening, Net, Told};
use crate::wire::{RailKind, Rank};

impl Net {
    /// Time at which a datagram posted at `from` leaves its queue.
    #[inline]
    pub fn queued(&mut self, rank: Rank, from: u64) -> u64 {
        let (queues, takes) = self.conditions.queues;
        let place = &mut self.ranks[rank as usize].queues;
        place.resize(queues.max(1), 0);
        let until = place.pop_front().unwrap_or(0).max(from) + takes;
        place.push_back(until);
        until
    }

    #[inline]
    pub fn latency(&mut self, rail: usize) -> u64 {
        let more = self.conditions.adapter.latency.get(rail).copied().unwrap_or(0);
        self.rng.u64(self.conditions.latency.clone()) + more
    }

    /// Occupies the processor of a rank, and returns the time at which it is free again.
    #[inline]
    pub fn works(&mut self, rank: Rank, takes: impl FnOnce(&Adapter) -> u64) -> u64 {
        let busy = &mut self.ranks[rank as usize].busy;
        *busy = self.now.max(*busy) + takes(&self.conditions.adapter);
        *busy
    }

    /// Adds a request to a lane. Adapters that cost time pass one request of each lane at a time, in turn.
    #[inline]
    pub fn queue(&mut self, lane: (Rank, Rank, usize), flight: Flight) {
        let (posted, costs) = (flight.posted, &self.conditions.adapter);
        let is_memory = self.conditions.rails[lane.2].kind == RailKind::Memory;
        let is_free = is_memory || costs.bus == 0 && costs.queue_pairs == 0;
        let Some(flights) = self.lanes.get_mut(&lane) else { return };
        flights.queue.push_back(flight);
        if is_free {
            self.enter(lane, posted);
        } else if flights.queue.len() == flights.entered + 1 {
            self.enter_next(lane);
        }
    }

    /// Schedules the next request of a lane, if there is one, for the time at which those before it have passed.
    #[inline]
    pub fn enter_next(&mut self, lane @ (from, to, rail): (Rank, Rank, usize)) {
        let Some(flights) = self.lanes.get(&lane) else { return };
        if let Some(next) = flights.queue.get(flights.entered) {
            let (at, generation) = (next.posted.max(flights.passed_at), flights.generation);
            self.happens(at, Happening::Enter(from, to, rail, generation));
        }
    }

    /// Passes the next request of a lane through the adapters, from time `at` on.
    #[inline]
    pub fn enter(&mut self, lane @ (from, to, rail): (Rank, Rank, usize), at: u64) {
        let Some(flights) = self.lanes.get(&lane) else { return };
        let Flight { bytes, latency, .. } = flights.queue[flights.entered];
        let [begins, passed] = match self.conditions.rails[rail].kind {
            RailKind::Memory => [at; 2],
            _ => self.cross(lane, at, bytes),
        };
        let takes = self.lane_time(rail, bytes);
        let flights = self.lanes.get_mut(&lane).expect("looked up above");
        flights.free_at = flights.free_at.max(begins) + takes;
        flights.passed_at = flights.free_at.max(passed);
        flights.due = flights.due.max(flights.passed_at + latency);
        flights.queue[flights.entered].due = flights.due;
        flights.entered += 1;
        if flights.entered == 1 {
            let (due, generation) = (flights.due, flights.generation);
            self.happens(due, Happening::Head(from, to, rail, generation));
        }
    }

    /// Time in which a lane of this rail passes `bytes` bytes.
    #[inline]
    fn lane_time(&self, rail: usize, bytes: u64) -> u64 {
        let slower = self.conditions.slower.get(rail).copied().unwrap_or(1);
        bytes * self.conditions.picoseconds * slower / 1000
    }

    /// Time at which a datagram of this length has left its lane, and its token if its completion is to be reported.
    #[inline]
    pub fn datagram(&mut self, lane: (Rank, Rank, usize), posted: u64, bytes: u64, token: Option<u64>) -> u64 {
        let [begins, passed] = self.cross(lane, posted, bytes);
        let takes = self.lane_time(lane.2, bytes);
        let flights = self.lanes.get_mut(&lane).expect("a lane is up while it is posted to");
        flights.free_at = flights.free_at.max(begins) + takes;
        let (at, generation) = (flights.free_at.max(passed), flights.generation);
        if let Some(token) = token {
            self.happens(at, Happening::Told(lane.0, lane.1, lane.2, Told::Done(token, generation)));
        }
        at
    }

    /// Passes a request of this length, which is posted at `begins`, through the adapters of both ends. Returns the times at
    /// which its bytes begin to leave, and have passed.
    #[inline]
    pub fn cross(&mut self, (from, to, rail): (Rank, Rank, usize), begins: u64, bytes: u64) -> [u64; 2] {
        let is_datagram = self.conditions.rails[rail].kind == RailKind::Datagram;
        let costs = &self.conditions.adapter;
        let mut cross = |rank: Rank, peer: Rank, from: u64| {
            let host = rank / self.conditions.host.max(1);
            let queue_pair = (rank, if is_datagram { rank } else { peer });
            self.adapters.cross(costs, (host, rail), queue_pair, from, bytes)
        };
        let [leaves, passed] = cross(from, to, begins);
        let [_, arrived] = cross(to, from, leaves);
        [leaves, passed.max(arrived)]
    }
}
