//! A part of a message is made ready once, and is not written after. The message is waited for when all parts have
//! been given up.

use transom::messages::{Error, Partitioned};

fn main() {}

fn twice(sending: &mut Partitioned<f64>) -> Result<(), Error> {
    let mut parts = sending.start()?;
    for mut part in parts.parts() {
        part[0] = 1.0;
        part.ready();
        #[cfg(wrong)]
        part.ready(); //~ E0382
    }
    parts.wait()
}

fn written_after(sending: &mut Partitioned<f64>) -> Result<(), Error> {
    let mut parts = sending.start()?;
    for mut part in parts.parts() {
        part[0] = 1.0;
        part.ready();
        #[cfg(wrong)]
        part.fill(2.0); //~ E0382
    }
    parts.wait()
}

fn waited_for_too_early(sending: &mut Partitioned<f64>) -> Result<(), Error> {
    let mut parts = sending.start()?;
    let last = parts.parts().last();
    #[cfg(wrong)]
    parts.wait()?; //~ E0505
    last.into_iter().for_each(|last| last.ready());
    #[cfg(not(wrong))]
    parts.wait()?;
    Ok(())
}

fn started_again(sending: &mut Partitioned<f64>) -> Result<(), Error> {
    let parts = sending.start()?;
    #[cfg(wrong)]
    sending.start()?.wait()?; //~ E0499
    parts.wait()?;
    drop(sending.start()?);
    Ok(())
}
