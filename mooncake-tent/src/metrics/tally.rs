//! What happens rarely, counted for the engine as a whole.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{AdmissionMetrics, Failovers, RegistrationMetrics, histogram::LiveHistogram};

/// Counts of an engine.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// From each link to each other one.
    failovers: Box<[AtomicU64]>,
    links: usize,
    pub(crate) waits: LiveHistogram,
    pub(crate) waited_too_long: Count,
    pub(crate) refused: Count,
    pub(crate) infeasible: Count,
    pub(crate) registered: Count,
    pub(crate) declined: Count,
    pub(crate) unregistered: Count,
    pub(crate) renewed: Count,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Of an engine with so many links.
    pub(crate) fn new(links: usize) -> Self {
        Self {
            failovers: (0..links * links).map(|_| AtomicU64::new(0)).collect(),
            links,
            ..Self::default()
        }
    }

    /// A task goes on over another link.
    pub(crate) fn failed_over(&self, from: usize, to: usize) {
        if let Some(count) = self.failovers.get(from * self.links + to) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Those that were; `link` tells the name of the link at a place.
    pub(crate) fn failovers(&self, link: impl Fn(usize) -> &'static str) -> Vec<Failovers> {
        let counts = self.failovers.iter().enumerate();
        let failovers = counts.map(|(place, count)| Failovers {
            from: link(place / self.links),
            to: link(place % self.links),
            tasks: count.load(Ordering::Relaxed),
        });
        failovers.filter(|it| it.tasks > 0).collect()
    }

    pub(crate) fn admission(&self) -> AdmissionMetrics {
        AdmissionMetrics {
            waits: self.waits.read(),
            waited_too_long: self.waited_too_long.get(),
            refused: self.refused.get(),
            infeasible: self.infeasible.get(),
        }
    }

    pub(crate) fn registrations(&self) -> RegistrationMetrics {
        RegistrationMetrics {
            registered: self.registered.get(),
            refused: self.declined.get(),
            unregistered: self.unregistered.get(),
            renewed: self.renewed.get(),
        }
    }
}
