//! What a device says unasked: that a port went down, that a queue failed, that the device is gone.

use super::Context;
use ibverbs_sys::*;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// An asynchronous event, as far as anybody here acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A port is usable, or is not any more.
    Port { port: u8, active: bool },
    /// The device failed, or was taken away.
    DeviceFatal,
    /// A completion queue overran, or failed, or the shared receive queue did.
    CompletionQueue,
    /// A queue pair failed, without a request that could tell it.
    QueuePair { number: u32 },
    /// A queue pair that has failed takes no buffer of its shared queue any more, and has done what came before.
    LastBuffer { number: u32 },
    /// One that changes nothing here.
    Other(u32),
}

impl Context {
    /// The event that made the descriptor readable.
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
    // SAFETY: the kind says which part of the union is there.
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
        // SAFETY: open until dropped, and the descriptor with it.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_read() {
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
