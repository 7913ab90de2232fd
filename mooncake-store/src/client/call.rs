//! What applications ask for.

use std::{fmt, future::Future, pin::Pin};

use bytes::Bytes;
use mooncake_tent::LocalSlice;
use smallvec::{SmallVec, smallvec};

use super::scratch::Loan;
use crate::{
    Fault,
    core::{Description, Existence, Got, Incarnation, PutOptions, RemoveOptions},
};

/// A future behind a pointer, as `dyn` traits return it.
pub(super) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Puts, gets and removes objects. All forms are batches with one result per key, in the order of
/// the keys; a key that fails does not keep the others from succeeding.
pub trait Client: fmt::Debug + Send + Sync {
    /// Stores bytes of registered memory under new keys, without a copy on this side.
    fn put_from(
        &self,
        items: Vec<PutFrom>,
        options: PutOptions,
    ) -> BoxFuture<'_, Vec<Result<Incarnation, Fault>>>;

    /// Reads objects into registered memory, without a copy on this side. A destination must be at
    /// least as long as its object; what lies behind the object's end is left alone.
    fn get_into(&self, items: Vec<GetInto>) -> BoxFuture<'_, Vec<Result<Got, Fault>>>;

    /// Reads objects into memory that the client lends.
    fn get(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Value, Fault>>>;

    /// Stores copies of these bytes under new keys.
    fn put<'a>(
        &'a self,
        items: Vec<(Bytes, &'a [u8])>,
        options: PutOptions,
    ) -> BoxFuture<'a, Vec<Result<Incarnation, Fault>>>;

    /// Whether objects exist, which is whether a read would find them.
    fn exist(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Existence, Fault>>>;

    /// Removes objects. An absent key is `ObjectNotFound`.
    fn remove(
        &self,
        keys: Vec<Bytes>,
        options: RemoveOptions,
    ) -> BoxFuture<'_, Vec<Result<(), Fault>>>;

    /// Removes all objects of the tenant, also those that are being put; how many could be read.
    /// Ends when nobody can read any of them.
    fn remove_all(&self) -> BoxFuture<'_, Result<u64, Fault>>;

    /// How objects are doing. Counts as no use of them.
    fn describe(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Vec<Result<Description, Fault>>>;
}

/// An object to store, and where its bytes are.
#[derive(Clone, Debug)]
pub struct PutFrom {
    /// Its key, 1 to 4,096 bytes.
    pub key: Bytes,
    /// Its bytes, in one or more pieces.
    pub from: SmallVec<[LocalSlice; 1]>,
}

impl PutFrom {
    /// An object whose bytes are in one piece.
    pub fn new(key: impl Into<Bytes>, from: LocalSlice) -> Self {
        Self {
            key: key.into(),
            from: smallvec![from],
        }
    }
}

/// An object to read, and where its bytes go.
#[derive(Clone, Debug)]
pub struct GetInto {
    /// Its key.
    pub key: Bytes,
    /// Where its bytes go, in one or more pieces.
    pub into: SmallVec<[LocalSlice; 1]>,
}

impl GetInto {
    /// An object that goes to one piece of memory.
    pub fn new(key: impl Into<Bytes>, into: LocalSlice) -> Self {
        Self {
            key: key.into(),
            into: smallvec![into],
        }
    }
}

/// An object that was read into memory of the client, which has it back when this is dropped.
#[derive(Debug)]
pub struct Value {
    pub(super) loan: Loan,
    pub(super) got: Got,
}

impl Value {
    /// Its length in bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "an object has at least one byte"
    )]
    pub fn len(&self) -> u64 {
        self.got.length
    }

    /// Which life of the object it is.
    pub fn incarnation(&self) -> Incarnation {
        self.got.incarnation
    }

    /// The memory in which it lies, for another transfer.
    pub fn slice(&self) -> Option<LocalSlice> {
        self.loan.front(self.got.length)
    }

    /// Copies some of it out.
    ///
    /// # Panics
    ///
    /// The range is not within the object.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) {
        assert!(
            offset + into.len() as u64 <= self.got.length,
            "reading beyond the object"
        );
        self.loan.read_at(offset, into);
    }

    /// A copy of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.got.length as usize];
        self.read_at(0, &mut bytes);
        bytes
    }
}
