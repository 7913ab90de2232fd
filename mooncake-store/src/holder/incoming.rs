//! The connections of readers.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    net::{TcpListener, TcpStream},
    time::Sleep,
};
use tokio_stream::Stream;

use super::file_storage::PAUSE;

/// Takes them as they come. A failure, such as of a process that has no more files, ends nothing: it pauses.
#[derive(Debug)]
pub(super) struct Incoming {
    listener: TcpListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(super) fn new(listener: TcpListener) -> Self {
        let pause = None;
        Self { listener, pause }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    // Else it is slower.
                    let _set = stream.set_nodelay(true);
                    return Poll::Ready(Some(Ok(stream)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a reader of the disk could not connect; trying again");
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}
