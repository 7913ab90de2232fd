//! Adds up what serving requests came to.

use std::time::Duration;

use super::Served;
use crate::latency::Latency;
use crate::report::Summary;
use crate::trace::{Ideal, Request};

/// Sums over all requests of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    ideal: Ideal,
    blocks_hit: u64,
    tokens_hit: u64,
    byte_errors: u64,
    unreadable: u64,
    errors: u64,
    bytes_get: u64,
    bytes_put: u64,
    get: Latency,
    put: Latency,
    get_busy: Duration,
    put_busy: Duration,
}

impl Tally {
    /// Adds a request. Requests must be added in the order of the trace, against which the ideal
    /// is reckoned.
    pub fn add(&mut self, request: &Request, served: &Served) {
        self.ideal.observe(request);
        self.blocks_hit += served.hit;
        self.tokens_hit += request.tokens_of(served.hit);
        self.byte_errors += served.byte_errors;
        self.unreadable += served.unreadable;
        self.errors += served.errors;
        self.bytes_get += served.bytes_get;
        self.bytes_put += served.bytes_put;
        for took in &served.get_us {
            let took = Duration::from_micros(*took);
            self.get.record(took);
            self.get_busy += took;
        }
        for took in &served.put_us {
            let took = Duration::from_micros(*took);
            self.put.record(took);
            self.put_busy += took;
        }
    }

    /// The numbers of a run of so many clients that took so long.
    #[must_use]
    pub fn summary(&self, clients: usize, took: Duration) -> Summary {
        let rate = |bytes: u64, busy: Duration| {
            // While some clients read others store: each has its share of the time.
            let busy = busy.as_secs_f64() / clients.max(1) as f64;
            if busy > 0.0 {
                bytes as f64 / busy / 1e9
            } else {
                0.0
            }
        };
        let ratio = |part: u64, whole: u64| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        Summary {
            requests: self.ideal.requests,
            blocks_total: self.ideal.blocks_total,
            blocks_hit: self.blocks_hit,
            hit_ratio_blocks: ratio(self.blocks_hit, self.ideal.blocks_total),
            hit_ratio_tokens: ratio(self.tokens_hit, self.ideal.tokens_input),
            ideal_ratio_blocks: self.ideal.ratio_blocks(),
            byte_errors: self.byte_errors,
            unreadable_blocks: self.unreadable,
            errors: self.errors,
            bytes_get: self.bytes_get,
            bytes_put: self.bytes_put,
            get_gb_per_s: rate(self.bytes_get, self.get_busy),
            put_gb_per_s: rate(self.bytes_put, self.put_busy),
            get_p50_us: self.get.p50_us(),
            get_p99_us: self.get.p99_us(),
            put_p50_us: self.put.p50_us(),
            put_p99_us: self.put.p99_us(),
            evicted_objects: 0,
            seconds: took.as_secs_f64(),
            nodes: Vec::new(),
            disks: None,
            cpp: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_judged_against_the_ideal_of_the_same_requests() {
        let request = Request {
            timestamp: 0,
            input_length: 1_000,
            output_length: 1,
            hash_ids: vec![0, 1],
        };
        let served = Served {
            hit: 1,
            bytes_get: 3_000_000,
            get_us: vec![1_000, 3_000],
            ..Served::default()
        };
        let mut tally = Tally::default();
        tally.add(&request, &Served::default());
        tally.add(&request, &served);
        let summary = tally.summary(2, Duration::from_secs(9));
        assert_eq!(
            (summary.requests, summary.blocks_total, summary.blocks_hit),
            (2, 4, 1)
        );
        assert!((summary.ideal_ratio_blocks - 0.5).abs() < 1e-9);
        assert!((summary.hit_ratio_tokens - 512.0 / 2_000.0).abs() < 1e-9);
        assert!(
            (summary.get_gb_per_s - 1.5).abs() < 1e-9,
            "{}",
            summary.get_gb_per_s
        );
    }
}
