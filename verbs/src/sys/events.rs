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
    /// Any other event; ignored.
    Other(u32),
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
    let port = |active| Event::Port { port: unsafe { event.element.port_num } as u8, active };
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
        assert_eq!(told(IBV_EVENT_LID_CHANGE), Event::Other(IBV_EVENT_LID_CHANGE));
        let mut pair = ibv_qp { qp_num: 77, ..Default::default() };
        let mut told = |event_type| {
            read(&ibv_async_event { element: ibv_async_event__bindgen_ty_1 { qp: &mut pair }, event_type })
        };
        assert_eq!(told(IBV_EVENT_QP_FATAL), Event::QueuePair { number: 77 });
        assert_eq!(told(IBV_EVENT_QP_LAST_WQE_REACHED), Event::LastBuffer { number: 77 });
    }
}
