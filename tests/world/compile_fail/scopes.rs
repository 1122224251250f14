//! Memory lent to a scope cannot be used until the scope ends, and outlives it. The epoch does not end inside the
//! scope.

use transom::{Error, GlobalArray, Window, scope};

fn main() {}

fn buffers_are_lent(window: &mut Window<u64>) -> Result<u64, Error> {
    let mut into = [0; 10];
    let epoch = window.lock_shared(0)?;
    scope(|scope| {
        let coming = scope.get(&epoch, 0, &mut into)?;
        #[cfg(wrong)]
        let sum = into.iter().sum(); //~ E0502
        #[cfg(not(wrong))]
        let sum = 0;
        coming.wait()?;
        Ok::<u64, Error>(sum)
    })
}

fn twice(window: &mut Window<u64>) -> Result<(), Error> {
    let (mut into, mut other) = ([0; 10], [0; 10]);
    let epoch = window.lock_shared(0)?;
    scope(|scope| {
        scope.get(&epoch, 0, &mut into)?;
        #[cfg(wrong)]
        scope.get(&epoch, 10, &mut into)?; //~ E0499
        scope.get(&epoch, 10, &mut other)?;
        Ok::<(), Error>(())
    })
}

fn a_source_changes(window: &mut Window<u64>) -> Result<(), Error> {
    let mut source = [0; 10];
    let epoch = window.lock_shared(0)?;
    scope(|scope| {
        scope.put(&epoch, 0, &source)?;
        #[cfg(wrong)]
        source.fill(1); //~ E0502
        Ok::<(), Error>(())
    })?;
    source.fill(2);
    Ok(())
}

fn a_buffer_of_the_scope(window: &mut Window<u64>) -> Result<(), Error> {
    let epoch = window.lock_shared(0)?;
    #[cfg(not(wrong))]
    let mut into = [0; 10];
    scope(|scope| {
        #[cfg(wrong)]
        let mut into = [0; 10];
        scope.get(&epoch, 0, &mut into)?; //~ E0597
        Ok::<(), Error>(())
    })
}

fn the_epoch_ends(window: &mut Window<u64>) -> Result<(), Error> {
    let mut into = [0; 10];
    let epoch = window.lock_shared(0)?;
    scope(|scope| {
        scope.get(&epoch, 0, &mut into)?; //~ E0597
        #[cfg(wrong)]
        epoch.unlock()?; //~ E0505
        Ok::<(), Error>(())
    })
}

fn it_is_kept(window: &mut Window<u64>) -> Result<(), Error> {
    let mut into = [0; 10];
    let epoch = window.lock_shared(0)?;
    #[cfg(wrong)]
    drop(scope(|scope| scope.get(&epoch, 0, &mut into))?); //~ without a code
    #[cfg(not(wrong))]
    scope(|scope| scope.get(&epoch, 0, &mut into).map(drop))?;
    epoch.unlock()
}

fn a_patch_is_lent(array: &mut GlobalArray<u64, 2>) -> Result<u64, Error> {
    let mut into = [0; 10];
    let access = array.lock_all()?;
    scope(|scope| {
        let coming = scope.get_patch(&access, [0..2, 0..5], &mut into)?;
        #[cfg(wrong)]
        let sum = into.iter().sum(); //~ E0502
        #[cfg(not(wrong))]
        let sum = 0;
        coming.wait()?;
        Ok::<u64, Error>(sum)
    })
}

fn a_source_of_a_patch_changes(array: &mut GlobalArray<u64>) -> Result<(), Error> {
    let mut source = [0; 10];
    let access = array.lock_all()?;
    scope(|scope| {
        scope.put_patch(&access, 0..10, &source)?;
        #[cfg(wrong)]
        source.fill(1); //~ E0502
        Ok::<(), Error>(())
    })?;
    source.fill(2);
    Ok(())
}

fn a_rank_by_itself_has_no_requests(array: &mut GlobalArray<u64>) -> Result<(), Error> {
    let mut into = [0; 10];
    #[cfg(wrong)]
    let access = array.local();
    #[cfg(not(wrong))]
    let access = array.lock_all()?;
    scope(|scope| scope.get_patch(&access, 0..10, &mut into).map(drop)) //~ E0277
}
