//! Asynchronous events of a device: a port goes down, a queue fails, the device is removed.

use super::Context;
use ibverbs_sys::*;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// An asynchronous event, as far as this crate acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A port became active or inactive.
    Port { port: u8, active: bool },
    /// The device failed or was removed.
    DeviceFatal,
    /// A completion queue or the shared receive queue failed.
    CompletionQueue,
    /// A queue pair failed without a failed request.
    QueuePair { number: u32 },
    /// A failed queue pair takes no further receive of its shared queue, and has finished earlier work.
    LastBuffer { number: u32 },
    /// Addresses or keys of a port changed, or may have.
    Address { port: u8, change: AddressChange },
    /// Any other event; ignored.
    Other(u32),
}

/// The reason why addresses may differ from those known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressChange {
    Gid,
    Lid,
    Pkey,
    /// Another subnet manager is in charge.
    SubnetManager,
    /// The subnet manager asks for all registrations again, because it was started again.
    ClientReregister,
}

impl Context {
    /// Reads the event that made the descriptor readable. Blocks if there is none.
    pub fn event(&self) -> io::Result<Event> {
        let mut event = ibv_async_event::default();
        // SAFETY: the context is open.
        if unsafe { (self.library.ibv_get_async_event)(self.raw.as_ptr(), &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let told = read(&event);
        // SAFETY: each event is acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&mut event) };
        Ok(told)
    }
}

fn read(event: &ibv_async_event) -> Event {
    // SAFETY: the event type selects the valid member of the union.
    let number = || unsafe { event.element.port_num } as u8;
    let port = |active| Event::Port { port: number(), active };
    let address = |change| Event::Address { port: number(), change };
    match event.event_type {
        IBV_EVENT_PORT_ACTIVE => port(true),
        IBV_EVENT_PORT_ERR => port(false),
        IBV_EVENT_DEVICE_FATAL => Event::DeviceFatal,
        IBV_EVENT_CQ_ERR | IBV_EVENT_SRQ_ERR => Event::CompletionQueue,
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
            // SAFETY: as above; destroying a queue pair waits until its events are acknowledged.
            Event::QueuePair { number: unsafe { (*event.element.qp).qp_num } }
        }
        IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: as above.
            Event::LastBuffer { number: unsafe { (*event.element.qp).qp_num } }
        }
        IBV_EVENT_GID_CHANGE => address(AddressChange::Gid),
        IBV_EVENT_LID_CHANGE => address(AddressChange::Lid),
        IBV_EVENT_PKEY_CHANGE => address(AddressChange::Pkey),
        IBV_EVENT_SM_CHANGE => address(AddressChange::SubnetManager),
        IBV_EVENT_CLIENT_REREGISTER => address(AddressChange::ClientReregister),
        other => Event::Other(other),
    }
}

impl AsFd for Context {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context and its descriptor stay open until dropped.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_type_is_decoded() {
        let told =
            |event_type| read(&ibv_async_event { element: ibv_async_event__bindgen_ty_1 { port_num: 2 }, event_type });
        assert_eq!(told(IBV_EVENT_PORT_ERR), Event::Port { port: 2, active: false });
        assert_eq!(told(IBV_EVENT_PORT_ACTIVE), Event::Port { port: 2, active: true });
        assert_eq!(told(IBV_EVENT_DEVICE_FATAL), Event::DeviceFatal);
        assert_eq!(told(IBV_EVENT_CQ_ERR), Event::CompletionQueue);
        for (event, change) in [
            (IBV_EVENT_GID_CHANGE, AddressChange::Gid),
            (IBV_EVENT_LID_CHANGE, AddressChange::Lid),
            (IBV_EVENT_PKEY_CHANGE, AddressChange::Pkey),
            (IBV_EVENT_SM_CHANGE, AddressChange::SubnetManager),
            (IBV_EVENT_CLIENT_REREGISTER, AddressChange::ClientReregister),
        ] {
            assert_eq!(told(event), Event::Address { port: 2, change });
        }
        assert_eq!(told(IBV_EVENT_COMM_EST), Event::Other(IBV_EVENT_COMM_EST));
        let mut pair = ibv_qp { qp_num: 77, ..Default::default() };
        let mut told = |event_type| {
            read(&ibv_async_event { element: ibv_async_event__bindgen_ty_1 { qp: &mut pair }, event_type })
        };
        assert_eq!(told(IBV_EVENT_QP_FATAL), Event::QueuePair { number: 77 });
        assert_eq!(told(IBV_EVENT_QP_LAST_WQE_REACHED), Event::LastBuffer { number: 77 });
    }
}
