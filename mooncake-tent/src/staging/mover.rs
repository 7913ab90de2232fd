//! Copies between the stage and memory that links do not reach.

use std::{fmt, io, sync::Arc};

use smallvec::SmallVec;

use crate::memory::LocalSlice;

/// Copies between memory of one kind and ordinary memory, such as a device's own copies do.
pub trait Mover: fmt::Debug + Send + Sync + 'static {
    /// Copies all bytes of `from` to `into`, which is as long. One of them is ordinary memory and the
    /// other one is of the mover's kind, as the [location](crate::LocalBuffer::location) of its buffer
    /// says; where it begins is its [`address`](LocalSlice::address). It may block. When it returns,
    /// however, neither side is touched any more.
    ///
    /// # Errors
    ///
    /// Some bytes may not be copied. The transfer fails.
    fn copy(&self, from: &LocalSlice, into: &LocalSlice) -> io::Result<()>;
}

/// For memory that is called by another name but can be reached like any other.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainMover;

impl Mover for PlainMover {
    fn copy(&self, from: &LocalSlice, into: &LocalSlice) -> io::Result<()> {
        if from.len() != into.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        into.piece().copy_from(from.piece());
        Ok(())
    }
}

/// From where to where.
pub(super) type Pairs = SmallVec<[(LocalSlice, LocalSlice); 1]>;

/// Has `mover` copy all pairs on a thread that may block. When this has ended, nothing is copied any
/// more; who does not wait for that leaves the copy going on.
pub(super) async fn copy(mover: &Arc<dyn Mover>, pairs: Pairs) -> Result<(), String> {
    let mover = Arc::clone(mover);
    let copied = tokio::task::spawn_blocking(move || {
        let mut pairs = pairs.iter();
        pairs.try_for_each(|(from, into)| mover.copy(from, into))
    });
    match copied.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the mover has panicked".to_owned()),
    }
}
