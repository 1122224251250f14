//! Runs a program as one of its ranks, and records the values that the rank reads.

use super::make::{Action, Call, Epoch, Flavour, How, On, Phase, Program, Sync};
use transom::provider::Provider;
use transom::windows::Request;
use transom::windows::{Attached, Local, Target};
use transom::{Address, Assert, Error, Mode, Rank, Requests, Section, Window, World};

type At<'e> = Target<'e, u64, Provider>;

/// Runs the program. Returns for each phase: the values that each call read; after signals, the part; at the end of
/// the phase, the part and the value of the signal.
pub fn perform(world: &World, program: &Program) -> Vec<u64> {
    let (me, n) = (world.rank(), world.size());
    let len = program.lens[me];
    let flavour = match program.flavour {
        Flavour::Allocate => transom::Flavor::Allocate { len },
        Flavour::Shared => transom::Flavor::Shared { len },
        Flavour::Create => transom::Flavor::Create(vec![0; len]),
        Flavour::Dynamic => transom::Flavor::Dynamic { slots: 2 },
    };
    let mut window: Window<u64> = world.window(flavour, 1).unwrap();
    let mut memory = AttachedParts::new(world, program, &mut window);
    let (mut seen, mut signals) = (Vec::new(), 0);
    for phase in &program.phases {
        let (mine, dynamic) = (&phase.epochs[me], program.flavour == Flavour::Dynamic);
        let actor = Actor { me, dynamic, memory: &memory };
        signals += phase.epochs.iter().flatten().flat_map(|epoch| &epoch.calls).filter(|call| call.signals(me)).count();
        match &phase.sync {
            Sync::Fence { before, after } => {
                let epoch = window.fence_with(before[me]).unwrap();
                let targets: Vec<At<'_>> = (0..n).map(|rank| epoch.target(rank).unwrap()).collect();
                seen.extend(actor.calls(&mine[0].calls, &targets.iter().collect::<Vec<_>>(), Some(epoch.local())));
                window.fence_with(after[me]).unwrap();
            }
            Sync::Pscw { targets, asserted, test } => {
                let origins: Vec<Rank> = (0..n).rev().filter(|&rank| targets[rank].contains(&me)).collect();
                window.post_with(&origins, *asserted | Assert::NOSTORE).unwrap();
                if asserted.contains(Assert::NOCHECK) {
                    world.barrier().unwrap();
                }
                let epoch = window.start_with(&targets[me], *asserted).unwrap();
                let mine_are: Vec<At<'_>> = targets[me].iter().map(|&rank| epoch.target(rank).unwrap()).collect();
                seen.extend(actor.calls(&mine[0].calls, &mine_are.iter().collect::<Vec<_>>(), Some(epoch.local())));
                drop(mine_are);
                if mine[0].dropped {
                    drop(epoch)
                } else {
                    epoch.complete().unwrap()
                }
                match test {
                    true => {
                        while !window.test().unwrap() {
                            std::thread::yield_now();
                        }
                    }
                    false => window.wait().unwrap(),
                }
            }
            Sync::Signals => {
                let epoch = window.lock_all().unwrap();
                let targets: Vec<At<'_>> = (0..n).map(|rank| epoch.target(rank).unwrap()).collect();
                seen.extend(actor.calls(&mine[0].calls, &targets.iter().collect::<Vec<_>>(), Some(epoch.local())));
                epoch.signals().wait_until(0, |value| value >= signals as u64).unwrap();
                let part = actor.part(epoch.local(), me);
                seen.extend(part.read(0, len).unwrap());
                drop(targets);
                if mine[0].dropped { drop(epoch) } else { epoch.unlock().unwrap() }
            }
            Sync::Locks => mine.iter().for_each(|epoch| seen.extend(actor.locked(&mut window, epoch))),
        }
        window.sync(); // stores outside epochs are visible to ranks behind the barrier
        world.barrier().unwrap();
        window.sync();
        seen.extend(actor.part(window.local(), me).read(0, len).unwrap());
        seen.push(window.signals().read(0).unwrap());
        // No rank begins the next phase before all have read their parts.
        world.barrier().unwrap();
        memory.renew(world, program, phase, &mut window);
    }
    let last = memory.part(window.local(), me, me, program.flavour == Flavour::Dynamic).read(0, len).unwrap();
    let back = window.free().unwrap();
    if program.flavour == Flavour::Create {
        assert_eq!(back, last, "free returned other elements than the window had");
    }
    seen
}

/// The logs of all ranks, at rank 0.
pub fn gathered(world: &World, seen: &[u64]) -> Option<Vec<Vec<u64>>> {
    let mut log: Window<u64> = world.allocate(seen.len()).unwrap();
    log.local().write(0, seen).unwrap();
    log.fence().unwrap();
    let all = (world.rank() == 0).then(|| {
        let epoch = log.lock_all().unwrap();
        let targets = (0..world.size()).map(|rank| epoch.target(rank).unwrap());
        let read = |target: At<'_>| target.rget(0, target.len()).unwrap().wait().unwrap();
        targets.map(read).collect()
    });
    world.barrier().unwrap();
    all
}

/// Attached memory, by rank, if the window is dynamic.
struct AttachedParts {
    names: Window<Address>,
    addresses: Vec<Address>,
    reached: Vec<Attached<Provider>>,
}

impl AttachedParts {
    fn new(world: &World, program: &Program, window: &mut Window<u64>) -> Self {
        let mut memory = AttachedParts { names: world.allocate(1).unwrap(), addresses: vec![], reached: vec![] };
        if program.flavour == Flavour::Dynamic {
            let address = window.attach(program.lens[world.rank()]).unwrap();
            memory.tell(world, window, address);
        }
        memory
    }

    fn tell(&mut self, world: &World, window: &Window<u64>, mine: Address) {
        self.names.local().set(0, mine).unwrap();
        self.names.fence().unwrap();
        let epoch = self.names.lock_all().unwrap();
        self.addresses = (0..world.size()).map(|rank| epoch.target(rank).unwrap().get_one(0).unwrap()).collect();
        epoch.unlock().unwrap();
        self.reached = self.addresses.iter().map(|address| window.reach(address).unwrap()).collect();
        self.names.fence().unwrap();
    }

    /// Detaches and attaches. Detached memory gives an error.
    fn renew(&mut self, world: &World, program: &Program, phase: &Phase, window: &mut Window<u64>) {
        if !phase.renewed.contains(&true) {
            return;
        }
        let (me, mut mine) = (world.rank(), self.addresses[world.rank()]);
        if phase.renewed[me] {
            window.detach(&mine).unwrap();
            mine = window.attach(program.lens[me]).unwrap();
        }
        world.barrier().unwrap();
        for rank in 0..world.size() {
            let (reached, again) = (&self.reached[rank], window.reach(&self.addresses[rank]).map(drop));
            let epoch = window.lock_shared(rank).unwrap();
            for outcome in [again, epoch.attached(reached).map(drop)] {
                match outcome {
                    Ok(()) => assert!(!phase.renewed[rank], "address that rank {rank} detached still resolves"),
                    Err(Error::Detached { rank: named, .. }) => assert!(phase.renewed[rank] && named == rank),
                    Err(other) => panic!("{other}"),
                }
            }
            epoch.unlock().unwrap();
        }
        self.tell(world, window, mine);
    }

    fn part<'w>(&self, local: Local<'w, u64, Provider>, me: Rank, of: Rank, dynamic: bool) -> Local<'w, u64, Provider> {
        match dynamic {
            true => local.attached(&self.addresses[me]).unwrap(),
            false if of == me => local,
            false => local.of(of).unwrap(),
        }
    }
}

struct Actor<'m> {
    me: Rank,
    dynamic: bool,
    memory: &'m AttachedParts,
}

impl Actor<'_> {
    fn part<'w>(&self, local: Local<'w, u64, Provider>, of: Rank) -> Local<'w, u64, Provider> {
        self.memory.part(local, self.me, of, self.dynamic)
    }

    /// An epoch of a lock.
    fn locked(&self, window: &mut Window<u64>, epoch: &Epoch) -> Vec<u64> {
        let (ranks, calls) = (window.ranks(), &epoch.calls);
        let (rank, mode, asserted) = match epoch.on {
            On::Exclusive(rank, asserted) => (rank, Mode::Exclusive, asserted),
            On::Shared(rank, asserted) => (rank, Mode::Shared, asserted),
            On::All(asserted) => {
                let open = window.lock_all_with(asserted).unwrap();
                let targets: Vec<At<'_>> = (0..ranks).map(|rank| open.target(rank).unwrap()).collect();
                let seen = self.calls(calls, &targets.iter().collect::<Vec<_>>(), Some(open.local()));
                drop(targets);
                if epoch.dropped {
                    drop(open)
                } else {
                    open.unlock().unwrap()
                }
                return seen;
            }
            On::Outside => return self.calls(calls, &[], Some(window.local())),
            On::Group => unreachable!("an epoch of a group takes no lock"),
        };
        let open = match (mode, asserted.is_empty()) {
            (Mode::Exclusive, true) => window.lock_exclusive(rank).unwrap(),
            (Mode::Shared, true) => window.lock_shared(rank).unwrap(),
            _ => window.lock_with(rank, mode, asserted).unwrap(),
        };
        let seen = self.calls(calls, &[&*open], None);
        if epoch.dropped {
            drop(open)
        } else {
            open.unlock().unwrap()
        }
        seen
    }

    /// The calls of an epoch that opened `targets`. Returns the values that they read, in order.
    fn calls(&self, calls: &[Call], targets: &[&At<'_>], local: Option<Local<'_, u64, Provider>>) -> Vec<u64> {
        let attach = |target: &&At<'_>| self.memory.reached[target.rank()].address().rank() == target.rank();
        assert!(!self.dynamic || targets.iter().all(attach));
        let attached: Vec<At<'_>> = match self.dynamic {
            true => targets.iter().map(|at| at.attached(&self.memory.reached[at.rank()]).unwrap()).collect(),
            false => Vec::new(),
        };
        let targets: Vec<&At<'_>> = if self.dynamic { attached.iter().collect() } else { targets.to_vec() };
        let mut seen: Vec<Vec<u64>> = vec![Vec::new(); calls.len()];
        let mut requests: Vec<(usize, Request<'_, Vec<u64>>)> = Vec::new();
        for (which, call) in calls.iter().enumerate() {
            let (elements, first) = (&call.elements[..], call.elements.first().copied().unwrap_or(0));
            let target = || {
                *targets
                    .iter()
                    .find(|target| target.rank() == call.target)
                    .expect("the epoch should include the target")
            };
            let part = || {
                let Some(local) = &local else { unreachable!("an epoch of one lock makes no loads") };
                self.part(local.of(self.me).unwrap(), call.target)
            };
            match &call.what {
                Action::Load => seen[which] = part().read(first, elements.len()).unwrap(),
                Action::Store(values) => part().write(first, values).unwrap(),
                Action::Settle { all } => {
                    settle(&mut requests, &mut seen, *all);
                    targets.iter().for_each(|target| target.flush().and(target.flush_local()).unwrap());
                }
                Action::Put(how, values) => match how {
                    How::Plain | How::One => target().put(first, values).unwrap(),
                    How::Section => target().put_section(&section(elements), values).unwrap(),
                    How::Signal => target().put_signal(first, values, 0, 1).unwrap(),
                    How::Request => requests.push((usize::MAX, target().rput(first, values.clone()).unwrap())),
                    How::Dropped => drop(target().rput(first, values.clone()).unwrap()),
                },
                Action::Get(how) => {
                    let mut into = vec![0; elements.len()];
                    match how {
                        How::One => into[0] = target().get_one(first).unwrap(),
                        How::Section => target().get_section(&section(elements), &mut into).unwrap(),
                        How::Plain | How::Signal => target().get(first, &mut into).unwrap(),
                        How::Request => requests.push((which, target().rget(first, into.len()).unwrap())),
                        How::Dropped => drop(target().rget(first, into.len()).unwrap()),
                    }
                    if !matches!(how, How::Request | How::Dropped) {
                        seen[which] = into;
                    }
                }
                Action::Accumulate(how, op, operands) => {
                    let done = match how {
                        How::Request => {
                            target().raccumulate(first, *op, operands.clone()).map(|r| requests.push((usize::MAX, r)))
                        }
                        How::Dropped => target().raccumulate(first, *op, operands.clone()).map(drop),
                        _ => target().accumulate(first, *op, operands),
                    };
                    done.unwrap();
                }
                Action::Fetch(how, op, operands) => {
                    let mut was = vec![0; operands.len()];
                    let done = match how {
                        How::One => target().fetch_and_op(first, *op, operands[0]).map(|one| seen[which] = vec![one]),
                        How::Request => {
                            target().rget_accumulate(first, *op, operands.clone()).map(|r| requests.push((which, r)))
                        }
                        How::Dropped => target().rget_accumulate(first, *op, operands.clone()).map(drop),
                        _ => target().get_accumulate(first, *op, operands, &mut was).map(|()| seen[which] = was),
                    };
                    done.unwrap();
                }
                Action::Swap { expected, new } => {
                    seen[which] = vec![target().compare_and_swap(first, *expected, *new).unwrap()];
                }
            }
        }
        settle(&mut requests, &mut seen, true);
        seen.concat()
    }
}

/// Waits for requests, all at once or one after the other as they are done; `usize::MAX` marks those that read nothing.
fn settle(requests: &mut Vec<(usize, Request<'_, Vec<u64>>)>, seen: &mut [Vec<u64>], all: bool) {
    let (calls, waited): (Vec<usize>, Vec<_>) = std::mem::take(requests).into_iter().unzip();
    let mut keep = |call: usize, buffer| {
        if call != usize::MAX {
            seen[call] = buffer;
        }
    };
    if all {
        let buffers = Request::wait_all(waited).unwrap();
        calls.into_iter().zip(buffers).for_each(|(call, buffer)| keep(call, buffer));
    } else {
        let mut waited: Requests<'_, _> = waited.into_iter().collect();
        while let Some((number, buffer)) = waited.wait_any() {
            keep(calls[number], buffer.unwrap());
        }
    }
}

/// The elements as a section: strided if they are evenly spaced.
fn section(elements: &[usize]) -> Section<'_> {
    let stride = match elements {
        [first, second, ..] => second.checked_sub(*first),
        _ => Some(1),
    };
    match stride {
        Some(stride) if elements.windows(2).all(|pair| pair[0].checked_add(stride) == Some(pair[1])) => {
            Section::Strided { offset: elements[0], count: elements.len(), block: 1, stride }
        }
        _ => Section::Indexed { offsets: elements, block: 1 },
    }
}
