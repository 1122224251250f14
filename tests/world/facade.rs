//! Each item that the facade re-exports exists under its name here, and works.

use transom::{
    Atomic, Counters, Distribution, Error, FabricError, GlobalArray, GlobalMutex, GlobalPtr, GlobalRwLock, Launch, Op,
    QueuePosition, Rank, Section, StartError, Window, World,
};

#[test]
fn single_rank_world_supports_windows() -> Result<(), Box<dyn std::error::Error>> {
    let world: World = transom::init()?;
    let me: Rank = world.rank();
    assert_eq!((me, world.size()), (0, 1));
    let mut window: Window<i64> = world.allocate(4)?;
    let epoch = window.lock_exclusive(me)?;
    assert_eq!(epoch.ahead(), QueuePosition::default());
    assert_eq!(epoch.fetch_and_op(1, Op::Min, -3)?, 0);
    let mut ends = [0; 2];
    epoch.get_section(&Section::Strided { offset: 1, count: 2, block: 1, stride: 2 }, &mut ends)?;
    assert_eq!(ends, [-3, 0]);
    epoch.unlock()?;
    let outside: Error = window.local().set(4, 0).unwrap_err();
    assert_eq!(outside.lost_rank(), None);
    let counted: Counters = window.counters();
    assert_eq!((counted.locks, counted.atomics), (1, 1));
    assert_eq!(i64::apply(Op::Sum, 1, 2), 3);
    Ok(())
}

#[test]
fn global_values_are_locked_across_ranks() -> Result<(), Box<dyn std::error::Error>> {
    transom::threads(2, |world| -> Result<(), Error> {
        let buffer: transom::Buffer<f32> = world.buffer(3)?;
        assert_eq!(buffer[..], [0.0; 3]);
        let count: GlobalMutex<u64> = world.mutex(1, 5)?;
        *count.lock()? += 1;
        world.barrier()?;
        assert_eq!(*count.lock()?, 7);
        let limit: GlobalRwLock<f64> = world.rw_lock(0, 0.5)?;
        assert_eq!(*limit.read()?, 0.5);
        Ok(())
    })?
    .into_iter()
    .collect::<Result<(), _>>()?;
    Ok(())
}

#[test]
fn global_array_spans_all_ranks() -> Result<(), Box<dyn std::error::Error>> {
    transom::threads(2, |world| -> Result<(), transom::Error> {
        let mut array: GlobalArray<i32> = world.array([10], Distribution::Cyclic)?;
        let layout: transom::array::Layout<1> = *array.layout();
        assert_eq!(layout.part_len(world.rank()), 5);
        let last: GlobalPtr<i32> = array.ptr(9)?;
        array.lock_all()?.fetch_and_op(last, Op::Sum, 1)?;
        assert_eq!(array.fence()?.get_one(9)?, 2);
        Ok(())
    })?
    .into_iter()
    .collect::<Result<(), _>>()?;
    Ok(())
}

#[test]
fn lower_layers_work_through_reexports() -> Result<(), FabricError> {
    let fabric = transom::shm_loopback::Loopback::alone()?;
    let window = transom::windows::Window::<u8, _>::allocate(&fabric, 9, 1);
    assert_eq!(window.expect("one byte").id(), 9);
    assert!(transom::locks::LockWord::<16>(0).is_idle());
    Ok(())
}

#[test]
fn launched_job_returns_its_exit_statuses() -> Result<(), StartError> {
    transom::log_from_env()?;
    let outcome = Launch::new("sh", 2).args(["-c", "exit $((TRANSOM_RANK * 3))"]).capture(true).run()?;
    assert_eq!((outcome.exit_code(), outcome.to_string().as_str()), (3, "rank 1 exited with status 3"));
    assert!(transom::variables::TABLE.iter().any(|variable| variable.name == "TRANSOM_LOG"));
    Ok(())
}
