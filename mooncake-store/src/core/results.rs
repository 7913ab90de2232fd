//! One result per key, each set once.

use bytes::Bytes;
use mooncake_proto::{Applied, Fault, Retry, status::ErrorCode};

/// The results of a batch while it runs.
#[derive(Debug)]
pub(super) struct Results<T> {
    slots: Vec<Option<Result<T, Fault>>>,
    open: usize,
}

impl<T> Results<T> {
    pub(super) fn new(len: usize) -> Self {
        Self {
            slots: (0..len).map(|_| None).collect(),
            open: len,
        }
    }

    /// Sets a result, and names the key in its fault. The first one stays.
    pub(super) fn set(&mut self, item: usize, key: &Bytes, result: Result<T, Fault>) {
        let slot = &mut self.slots[item];
        if slot.is_some() {
            return;
        }
        *slot = Some(result.map_err(|mut fault| {
            if fault.key.is_empty() {
                fault.key = key.clone();
            }
            fault
        }));
        self.open -= 1;
    }

    pub(super) fn is_open(&self, item: usize) -> bool {
        self.slots[item].is_none()
    }

    /// The items without a result yet.
    pub(super) fn open_items(&self) -> Vec<usize> {
        (0..self.slots.len())
            .filter(|item| self.is_open(*item))
            .collect()
    }

    /// All results, once there are all.
    pub(super) fn take(&mut self) -> Option<Vec<Result<T, Fault>>> {
        (self.open == 0).then(|| self.slots.drain(..).flatten().collect())
    }
}

/// The operation's deadline has passed in `stage`.
pub(super) fn timed_out(stage: &str, applied: Applied, quiescent: bool) -> Fault {
    let message = "the operation's deadline has passed";
    Fault::new(ErrorCode::RpcTimeout, Retry::Here, message)
        .with_stage(stage)
        .with_effect(applied, quiescent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_complete_once_each_key_has_its_first() {
        let mut results = Results::new(2);
        let key = Bytes::from_static(b"k");
        results.set(1, &key, Err(timed_out("read", Applied::Unknown, true)));
        results.set(1, &key, Ok(5));
        assert_eq!((results.open_items(), results.take()), (vec![0], None));
        results.set(0, &key, Ok(4));
        let all = results.take().unwrap();
        assert_eq!(all[0], Ok(4));
        assert_eq!(all[1].as_ref().unwrap_err().key, key);
    }
}
