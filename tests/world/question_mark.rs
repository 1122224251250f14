//! `?` carries the errors of every call to a main of `Result<(), transom::Error>`, and to one of `Result<(), Box<dyn
//! Error>>`: one body that makes all calls is compiled for each.

use crate::ranks;
use transom::array::Layout;
use transom::windows::Request;
use transom::windows::{OobExchange, Waiting};
use transom::{Assert, Distribution, Flavor, GlobalPtr, Mode, Op, Requests, Section, Window, World};

/// A function that makes every call and hands its errors over as `$error`.
macro_rules! program {
    ($name:ident, $error:ty) => {
        fn $name(world: &World) -> Result<(), $error> {
            let me = world.rank();
            world.barrier()?;
            world.split(Some(me as u64), 0)?.ok_or_else(|| transom::Error::other("a team of one"))?.barrier()?;

            // Windows: epochs.
            let mut window: Window<u64> = world.allocate_with_signals(8, 2)?;
            window.fence()?.target(me)?.put(0, &[1])?;
            window.fence_with(Assert::NOSUCCEED)?;
            window.post(&[me])?;
            window.start(&[me])?.complete()?;
            window.wait()?;
            window.post_with(&[me], Assert::NOCHECK)?;
            let epoch = window.start_with(&[me], Assert::NOCHECK)?;
            epoch.target(me)?.put(0, &[1])?;
            epoch.local().set(0, 1)?;
            epoch.complete()?;
            while !window.test()? {}
            window.lock_with(me, Mode::Shared, Assert::empty())?.unlock()?;
            window.lock_all_with(Assert::empty())?.unlock()?;
            let mut exclusive = window.lock_exclusive(me)?;
            exclusive.for_threads().target().put(0, &[1])?;
            exclusive.unlock()?;
            let all = window.lock_all()?;
            let target = all.target(me)?;
            target.flush()?;
            target.flush_local()?;
            all.flush_all()?;
            all.flush_local_all()?;
            all.signals().set(0, 0)?;
            all.unlock()?;

            // Operations.
            let target = window.lock_shared(me)?;
            target.put(0, &[1, 2])?;
            target.get(0, &mut [0; 2])?;
            target.get_one(0)?;
            target.put_section(&Section::Strided { offset: 0, count: 2, block: 1, stride: 2 }, &[1, 2])?;
            target.get_section(&Section::Indexed { offsets: &[0, 3], block: 1 }, &mut [0; 2])?;
            target.fetch_and_op(0, Op::Sum, 1)?;
            target.compare_and_swap(0, 1, 2)?;
            target.accumulate(0, Op::Max, &[1, 2])?;
            target.get_accumulate(0, Op::Sum, &[1, 2], &mut [0; 2])?;
            target.put_signal(0, &[1], 0, 1)?;
            let mut requests = Requests::new();
            requests.push(target.rput(0, vec![1])?);
            requests.push(target.rget(0, 1)?);
            requests.test_any().map(|(_, ended)| ended).transpose()?;
            requests.wait_any().map(|(_, ended)| ended).transpose()?;
            target.raccumulate(0, Op::Sum, vec![1])?.wait()?;
            let mut request = target.rget_accumulate(0, Op::Sum, vec![1])?;
            request.test();
            Request::wait_all([request])?;
            drop(requests);
            target.unlock()?;

            // A rank's own part and signals.
            let (local, signals) = (window.local(), window.signals());
            local.of(me)?.get(0)?;
            local.set(0, 1)?;
            local.write(0, &[1, 2])?;
            local.read_into(0, &mut [0; 2])?;
            local.read(0, 2)?;
            // SAFETY: nobody else uses this part now.
            unsafe { (local.as_slice(0, 1)?.len(), local.as_mut_slice(0, 1)?.len()) };
            signals.read(0)?;
            signals.wait_until(0, |value| value > 0)?;
            signals.wait_any(&[0, 1], |_, value| value > 0)?;
            window.free()?;

            // Other memory.
            world.window::<u8>(Flavor::Allocate { len: 1 }, 0)?.fence()?.target(me)?.put(0, &[1])?;
            world.allocate::<u8>(1)?.fence()?;
            if ranks::share_memory(world) {
                world.allocate_shared::<u8>(1)?.fence()?;
            }
            let memory: Vec<u64> = world.create(vec![1, 2])?.free()?;
            assert_eq!(memory, [1, 2]);
            let mut dynamic = world.dynamic::<u64>(1)?;
            let address = dynamic.attach(3)?;
            let reached = dynamic.reach(&address)?;
            dynamic.lock_shared(me)?.attached(&reached)?.put(0, &[1])?;
            dynamic.local().attached(&address)?.get(0)?;
            dynamic.detach(&address)?;

            // Values behind a lock.
            let mutex = world.mutex(0, 1u64)?;
            *mutex.lock()? += 1;
            mutex.lock()?.unlock()?;
            mutex.clear_poison()?;
            assert!(!mutex.is_poisoned()?);
            *mutex.lock_ignoring_poison()? += 1;
            let values = world.rw_lock(0, [1u64; 3])?;
            values.write()?[0] += 1;
            values.read()?.unlock()?;
            values.clear_poison()?;
            assert!(!values.is_poisoned()?);
            values.write_ignoring_poison()?[1] = 0;
            assert_eq!(values.read_ignoring_poison()?[1], 0);

            // Arrays.
            let layout = Layout::on_grid([4, 4], Distribution::Cyclic, [1, world.size()])?;
            assert_eq!(layout, Layout::on_grid([4, 4], Distribution::Cyclic, [1, world.size()])?);
            Layout::new([4], Distribution::Block, 3)?;
            world.array_on::<u64, 2>(layout)?.fence()?;
            let mut array = world.array::<u64, 2>([4, 4], Distribution::BlockCyclic([2, 2]))?;
            let pointer: GlobalPtr<u64> = array.ptr([1, 1])?;
            array.index_of(pointer)?;
            let owned = array.layout().tiles_of(me).map(|tile| tile.index).next();
            if let Some(tile) = owned {
                array.local().put_tile(tile, &[1; 4])?;
                array.local().get_tile(tile, &mut [0; 4])?;
            }
            array.fence()?.get_one(pointer)?;
            array.lock_shared(0)?.unlock()?;
            array.lock_exclusive(0)?.unlock()?;
            let epoch = array.lock_all()?;
            epoch.put_one([0, 0], 1)?;
            epoch.put([0..1, 0..4], &[1; 4])?;
            epoch.get([0..1, 0..4], &mut [0; 4])?;
            epoch.put_tile([0, 0], &[1; 4])?;
            epoch.get_tile([0, 0], &mut [0; 4])?;
            epoch.fetch_and_op([0, 0], Op::Sum, 1)?;
            epoch.compare_and_swap(pointer, 1, 2)?;
            epoch.accumulate([0..1, 0..4], Op::Sum, &[1; 4])?;
            epoch.index_of(epoch.ptr([2, 2])?)?;
            epoch.flush()?;
            epoch.unlock()?;

            // Starting, and a provider alone.
            transom::threads(1, |_| ())?;
            transom::log_from_env()?;
            assert!(!Waiting::default().set(), "the wait settings should have been set at the start of the job");
            let hosts: transom::HostList = "localhost:2".parse()?;
            assert_eq!(hosts.names().count(), 1);
            assert!(transom::Launch::new("true", 1).run()?.success());
            transom::shm_loopback::Loopback::alone()?.barrier()?;
            Ok(())
        }
    };
}

program!(by_its_own, transom::Error);
program!(by_any, Box<dyn std::error::Error>);

#[test]
fn every_call_error_converts_with_question_mark() {
    ranks::on(&[1, 2, 3], "every_call_error_converts_with_question_mark", |world| {
        by_its_own(&world).unwrap();
        world.barrier().unwrap();
        by_any(&world).unwrap();
    });
}

/// Errors of messages, collectives and starting. Errors of windows name the window and the operation themselves.
#[test]
fn printed_error_names_the_calling_line() {
    fn sends(world: &World) -> Result<(), transom::Error> {
        world.send(7, TAG, &[1])?;
        Ok(())
    }
    fn waits(world: &World) -> Result<(), transom::Error> {
        world.isend(7, TAG, vec![1]).wait()?;
        Ok(())
    }
    fn starts() -> Result<(), transom::Error> {
        transom::Launch::new("true", 0).run()?;
        Ok(())
    }
    const TAG: transom::messages::Tag<u8> = transom::messages::Tag::new(1);
    let first = line!() - 13;
    let told = |error: transom::Error, message: &str, line: u32| {
        assert_eq!(format!("{error:?}"), format!("{message} ({}:{})", file!(), first + line));
        assert_eq!(error.to_string(), message);
    };
    let none = "there is no rank 7: ranks are 0 to 0";
    transom::threads(1, |world| {
        told(sends(&world).unwrap_err(), none, 1);
        told(waits(&world).unwrap_err(), none, 5);
    })
    .unwrap();
    told(starts().unwrap_err(), "a job has 1 to 32767 ranks, not 0", 9);
}
