//! The operations that every transfer engine has, so that a store runs on any.

use std::{fmt, time::Duration};

use super::{Batch, Buffer, Probe, RegisterOptions, Request};
use crate::{
    error::Result,
    identity::{Generation, Incarnation},
    memory::Memory,
    notify::{Announcement, Notification, ReceivedNotification},
    segment::Segment,
    transport::{Arrival, BoxFuture},
};

/// Moves bytes between registered buffers of different processes.
pub trait TransferEngine: fmt::Debug + Send + Sync {
    /// This life of the process.
    fn incarnation(&self) -> Incarnation;

    /// The name under which others open this process's segment.
    fn segment_name(&self) -> &str;

    /// Registers memory with every link; all or nothing.
    ///
    /// # Errors
    ///
    /// A link fails to prepare it.
    fn register_memory(
        &self,
        memory: Memory,
        options: RegisterOptions,
    ) -> BoxFuture<'_, Result<Buffer>>;

    /// Takes a buffer from peers, and ends once nothing can move in it any more.
    ///
    /// # Errors
    ///
    /// Transfers still hold it when the budget is over. Peers have lost it all the same, and its
    /// memory is freed when they end.
    fn unregister_memory(&self, buffer: Buffer, budget: Duration) -> BoxFuture<'_, Result<()>>;

    /// Begins a new generation of a registration: whoever names an older one is refused.
    ///
    /// # Errors
    ///
    /// Transfers still hold it when the budget is over. Then peers are refused until a later call
    /// succeeds.
    fn renew_registration<'a>(
        &'a self,
        buffer: &'a Buffer,
        budget: Duration,
    ) -> BoxFuture<'a, Result<Generation>>;

    /// Opens the segment of another process, of this one, or one that a link provides itself, such
    /// as a file. Of the last kind each opening is another segment, with an incarnation of its own.
    ///
    /// # Errors
    ///
    /// Its owner does not answer within the budget, or the link cannot open it.
    fn open_segment<'a>(
        &'a self,
        name: &'a str,
        budget: Duration,
    ) -> BoxFuture<'a, Result<Segment>>;

    /// Forgets a segment, once that was asked for each opening of it that is in use; what was submitted
    /// to it goes on. One that a link provides itself, such as
    /// a file, takes no further requests, and is closed when the last task is quiet.
    fn close_segment(&self, segment: &Segment);

    /// Connects whatever a first transfer to the segment would need.
    ///
    /// # Errors
    ///
    /// No link reaches its owner within the budget.
    fn warm_up<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<()>>;

    /// Asks whether the segment's owner lives, in the life in which the segment is known. The answer
    /// comes from its control service, whatever its links do.
    ///
    /// # Errors
    ///
    /// The segment is that of a file, behind which nobody is.
    fn probe<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<Probe>>;

    /// Ends with proof that nothing posted to the segment before can land any more, in whichever life
    /// of its owner.
    ///
    /// # Errors
    ///
    /// A link could not prove it within the budget, or something was still being posted.
    fn fence<'a>(&'a self, segment: &'a Segment, budget: Duration) -> BoxFuture<'a, Result<()>>;

    /// Room for `capacity` tasks.
    fn allocate_batch(&self, capacity: usize) -> Batch;

    /// Adds the requests to the batch and starts them; all or none.
    ///
    /// # Errors
    ///
    /// The batch or the engine has no room for them, or no link carries one of them.
    fn submit_transfer(&self, batch: &mut Batch, requests: Vec<Request>) -> Result<()>;

    /// As [`submit_transfer`](Self::submit_transfer). Once all tasks of this submission have completed,
    /// each process that it named finds `notification` in its queue, once; if one of them does not
    /// complete, nobody is told. It is sent whether or not anybody waits for the batch or for what is
    /// returned, and given up when it is not taken within the engine's
    /// [patience](crate::TentEngineBuilder::patience).
    ///
    /// # Errors
    ///
    /// As there; or the notification is too long; or a segment is that of a file, behind which nobody is.
    fn submit_transfer_and_notify(
        &self,
        batch: &mut Batch,
        requests: Vec<Request>,
        notification: Notification,
    ) -> Result<Announcement>;

    /// Puts a notification into the queue of the segment's owner: once, or not at all. Those to one
    /// owner arrive in the order in which these calls began to be awaited.
    ///
    /// # Errors
    ///
    /// [`NotDelivered`](crate::Error::NotDelivered): the owner did not take it within the budget, be it
    /// that its queue is full or that it does not answer; it may have been delivered all the same only if
    /// the error says so. [`Restarted`](crate::Error::Restarted): another life of the owner answers, which
    /// got nothing; the segment speaks of that one from then on.
    fn send_notification<'a>(
        &'a self,
        segment: &'a Segment,
        notification: Notification,
        budget: Duration,
    ) -> BoxFuture<'a, Result<()>>;

    /// All notifications that have come, oldest first, from whomever and by whatever way.
    fn receive_notifications(&self) -> Vec<ReceivedNotification>;

    /// The oldest notification, once there is one. Losing the future loses no notification.
    fn next_notification(&self) -> BoxFuture<'_, ReceivedNotification>;

    /// Writes with an [op id](Request::op_id) that arrived here, in the order in which they did, except
    /// those that somebody waits for by name. Each is told once. Until they are taken they hold room, for
    /// want of which peers are refused in the end.
    fn receive_arrivals(&self) -> Vec<Arrival>;

    /// The oldest of them, once there is one. Losing the future loses no arrival.
    fn next_arrival(&self) -> BoxFuture<'_, Arrival>;

    /// The write that `sender` gives this number, once it has arrived, be it now or before this call.
    /// Losing the future loses no arrival: others may take it then.
    fn arrival(&self, sender: Incarnation, op_id: u64) -> BoxFuture<'_, Arrival>;

    /// Ends all transfers and takes all buffers from peers. Nothing moves afterwards.
    ///
    /// # Errors
    ///
    /// A link could not prove that within the budget.
    fn shutdown(&self, budget: Duration) -> BoxFuture<'_, Result<()>>;
}
