//! Calls as the core has them, and what came of them as callers have it.

use bytes::Bytes;
use mooncake_tent::LocalSlice;

use super::{
    call::{GetInto, PutFrom, Value},
    driver::{Finished, Place},
    scratch::Loan,
};
use crate::{
    Fault,
    core::{GetItem, Got, Incarnation, Operation, Outcome, PutItem, PutOptions},
};

/// An operation, and the local places of its items.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) operation: Operation,
    pub(super) places: Vec<Place>,
}

impl Asked {
    pub(super) fn put_from(items: Vec<PutFrom>, options: PutOptions) -> Self {
        let (items, places) = items
            .into_iter()
            .map(|item| {
                let length = item.from.iter().map(LocalSlice::len).sum();
                let key = item.key;
                (PutItem { key, length }, Place::Given(item.from))
            })
            .unzip();
        let operation = Operation::Put { items, options };
        Self { operation, places }
    }

    /// Copies the values into these loans, one for each.
    pub(super) fn put(items: Vec<(Bytes, &[u8])>, loans: Vec<Loan>, options: PutOptions) -> Self {
        let (items, places) = items
            .into_iter()
            .zip(loans)
            .map(|((key, value), loan)| {
                loan.write(value);
                let length = value.len() as u64;
                (PutItem { key, length }, Place::Lent(Some(loan)))
            })
            .unzip();
        let operation = Operation::Put { items, options };
        Self { operation, places }
    }

    pub(super) fn get_into(items: Vec<GetInto>) -> Self {
        let (items, places) = items
            .into_iter()
            .map(|item| {
                let capacity = item.into.iter().map(LocalSlice::len).sum();
                let key = item.key;
                let capacity = Some(capacity);
                (GetItem { key, capacity }, Place::Given(item.into))
            })
            .unzip();
        let operation = Operation::Get { items };
        Self { operation, places }
    }

    pub(super) fn get(keys: Vec<Bytes>) -> Self {
        let places = vec![Place::Lent(None); keys.len()];
        let capacity = None;
        let items = keys.into_iter().map(|key| GetItem { key, capacity });
        let items = items.collect();
        let operation = Operation::Get { items };
        Self { operation, places }
    }

    /// What moves no bytes.
    pub(super) fn query(operation: Operation) -> Self {
        let places = Vec::new();
        Self { operation, places }
    }
}

/// The lengths of the memory that these values need. The core refuses empty ones, naming the key.
pub(super) fn lengths(items: &[(Bytes, &[u8])]) -> Vec<u64> {
    let lengths = items.iter().map(|(_, value)| value.len().max(1) as u64);
    lengths.collect()
}

/// What an operation of one kind came to.
macro_rules! outcome {
    ($name:ident, $variant:ident, $result:ty) => {
        pub(super) fn $name(finished: Finished) -> $result {
            match finished.outcome {
                Outcome::$variant(result) => result,
                other => unreachable!("the operation ended as {other:?}"),
            }
        }
    };
}

outcome!(put, Put, Vec<Result<Incarnation, Fault>>);
outcome!(got, Get, Vec<Result<Got, Fault>>);
outcome!(exist, Exist, Vec<Result<crate::core::Existence, Fault>>);
outcome!(removed, Remove, Vec<Result<(), Fault>>);
outcome!(removed_all, RemoveAll, Result<u64, Fault>);
outcome!(
    described,
    Describe,
    Vec<Result<crate::core::Description, Fault>>
);

/// What was read into memory of the client.
pub(super) fn values(finished: Finished) -> Vec<Result<Value, Fault>> {
    let Finished { outcome, places } = finished;
    let Outcome::Get(results) = outcome else {
        unreachable!("a get ended as {outcome:?}");
    };
    let value = |(result, place): (Result<Got, Fault>, Place)| {
        let got = result?;
        let Place::Lent(Some(loan)) = place else {
            unreachable!("what was read has a place");
        };
        Ok(Value { loan, got })
    };
    results.into_iter().zip(places).map(value).collect()
}
