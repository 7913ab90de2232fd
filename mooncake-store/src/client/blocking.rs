//! The client of threads that wait.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use mooncake_tent::{Buffer, TransferEngine};

use super::{
    asked::{self, Asked},
    call::{GetInto, PutFrom, Value},
    driver::Finished,
    host::Host,
    real::{ClientOptions, RealClient, no_memory},
};
use crate::{
    Fault, StoreError,
    core::{Description, Existence, Got, Incarnation, Operation, PutOptions, RemoveOptions},
    master::MasterClient,
};

/// A [`RealClient`] for callers without an async runtime, and the fastest one for single calls: the
/// thread that calls asks the master and moves the bytes by itself, so that no other thread has to
/// wake up in between. Any number of threads may call at once. Clones are the same client.
///
/// The calls are those of [`Client`](super::Client). They must not be made from async code, which
/// they would block; there they panic.
///
/// ```no_run
/// use mooncake_store::{BlockingClient, ClientOptions, core::PutOptions};
///
/// let client = BlockingClient::connect("127.0.0.1:50051", ClientOptions::default())?;
/// client.put(vec![("block".into(), &b"some bytes"[..])], PutOptions::default()).remove(0)?;
/// let value = client.get(vec!["block".into()]).remove(0)?;
/// assert_eq!(value.to_vec(), b"some bytes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockingClient {
    client: RealClient,
    host: Arc<Host>,
}

impl BlockingClient {
    /// As [`RealClient::connect`].
    ///
    /// # Errors
    ///
    /// The master does not answer, the engine cannot start, there is no memory to lend, or the
    /// system has no threads.
    pub fn connect(address: &str, options: ClientOptions) -> Result<Self, StoreError> {
        let host = Host::start().map_err(|source| mooncake_tent::Error::System {
            what: "a thread for the client".to_owned(),
            source,
        })?;
        let client = host.wait(RealClient::connect(address, options))?;
        let host = Arc::new(host);
        Ok(Self { client, host })
    }

    /// Another client over the same engine and session, and the same memory that is lent; all of that
    /// goes on after it.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self {
            client: self.host.wait(async { self.client.sibling() }),
            host: Arc::clone(&self.host),
        }
    }

    /// The same client with another patience.
    #[must_use]
    pub fn with_deadline(&self, operation_deadline: Duration) -> Self {
        Self {
            client: self.client.with_deadline(operation_deadline),
            host: Arc::clone(&self.host),
        }
    }

    /// The engine that moves its bytes.
    pub fn engine(&self) -> &Arc<dyn TransferEngine> {
        self.client.engine()
    }

    /// Its session with the master, which ends with the last clone of this client.
    pub fn master(&self) -> &MasterClient {
        self.client.master()
    }

    /// As [`RealClient::allocate`].
    ///
    /// # Errors
    ///
    /// The system has no memory, or a link refuses it.
    pub fn allocate(&self, len: usize) -> Result<Buffer, StoreError> {
        self.host.wait(self.client.allocate(len))
    }

    /// As [`RealClient::close`].
    ///
    /// # Errors
    ///
    /// Transfers could not be proven quiet within the budget.
    pub fn close(&self, budget: Duration) -> Result<(), StoreError> {
        self.host.wait(self.client.close(budget))
    }

    /// Stores bytes of registered memory under new keys, without a copy on this side.
    pub fn put_from(
        &self,
        items: Vec<PutFrom>,
        options: PutOptions,
    ) -> Vec<Result<Incarnation, Fault>> {
        asked::put(self.attend(Asked::put_from(items, options)))
    }

    /// Reads objects into registered memory, without a copy on this side.
    pub fn get_into(&self, items: Vec<GetInto>) -> Vec<Result<Got, Fault>> {
        asked::got(self.attend(Asked::get_into(items)))
    }

    /// Reads objects into memory that the client lends.
    pub fn get(&self, keys: Vec<Bytes>) -> Vec<Result<Value, Fault>> {
        asked::values(self.attend(Asked::get(keys)))
    }

    /// Stores copies of these bytes under new keys.
    pub fn put(
        &self,
        items: Vec<(Bytes, &[u8])>,
        options: PutOptions,
    ) -> Vec<Result<Incarnation, Fault>> {
        let scratch = self.client.driver().scratch();
        let lengths = asked::lengths(&items);
        let lent = match scratch.lend_idle(&lengths) {
            Some(loans) => Ok(loans),
            None => self.host.wait(scratch.lend(&lengths)),
        };
        match lent {
            Ok(loans) => asked::put(self.attend(Asked::put(items, loans, options))),
            Err(error) => no_memory(items, &error),
        }
    }

    /// Whether objects exist, which is whether a read would find them.
    pub fn exist(&self, keys: Vec<Bytes>) -> Vec<Result<Existence, Fault>> {
        asked::exist(self.attend(Asked::query(Operation::Exist { keys })))
    }

    /// Removes objects. An absent key is `ObjectNotFound`.
    pub fn remove(&self, keys: Vec<Bytes>, options: RemoveOptions) -> Vec<Result<(), Fault>> {
        asked::removed(self.attend(Asked::query(Operation::Remove { keys, options })))
    }

    /// Removes all objects of the tenant.
    ///
    /// # Errors
    ///
    /// The master does not answer in time.
    pub fn remove_all(&self) -> Result<u64, Fault> {
        asked::removed_all(self.attend(Asked::query(Operation::RemoveAll)))
    }

    /// How objects are doing. Counts as no use of them.
    pub fn describe(&self, keys: Vec<Bytes>) -> Vec<Result<Description, Fault>> {
        asked::described(self.attend(Asked::query(Operation::Describe { keys })))
    }

    fn attend(&self, asked: Asked) -> Finished {
        let (driver, patience) = (self.client.driver(), self.client.deadline());
        driver.attend(&self.host, asked, patience)
    }
}
