//! A value behind a lock is plain data. It is reached by a guard, which lives as long as the lock is held, on one
//! thread.

use transom::{Error, GlobalMutex, GlobalRwLock, World};

fn main() {}

fn plain_data(world: &World) -> Result<(), Error> {
    #[cfg(wrong)]
    world.mutexes(10, |_| String::new())?; //~ E0277
    world.mutexes(10, |at| [at as u64; 4]).map(drop)
}

fn after_the_unlock(cells: &[GlobalMutex<u64>]) -> Result<u64, Error> {
    let guard = cells[3].lock()?;
    #[cfg(not(wrong))]
    let value = *guard;
    guard.unlock()?;
    #[cfg(wrong)]
    let value = *guard; //~ E0382
    Ok(value)
}

fn after_the_array(world: &World) -> Result<u64, Error> {
    let cells = world.mutexes(10, |_| 0u64)?;
    let guard = cells[3].lock()?;
    #[cfg(not(wrong))]
    drop(guard);
    drop(cells); //~ E0505
    #[cfg(wrong)]
    return Ok(*guard);
    #[cfg(not(wrong))]
    Ok(0)
}

fn by_a_reader(limits: &GlobalRwLock<f64>) -> Result<(), Error> {
    #[cfg(wrong)]
    let mut limits = limits.read()?;
    #[cfg(not(wrong))]
    let mut limits = limits.write()?;
    *limits = 2.5; //~ E0594
    limits.unlock()
}

fn by_another_thread(cells: &[GlobalMutex<u64>]) -> Result<(), Error> {
    #[cfg(wrong)]
    let guard = cells[3].lock()?;
    std::thread::scope(|scope| {
        scope.spawn(move || { //~ E0277
            #[cfg(not(wrong))]
            let guard = cells[3].lock().expect("no rank died");
            drop(guard)
        });
    });
    Ok(())
}
