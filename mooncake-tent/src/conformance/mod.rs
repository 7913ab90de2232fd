//! What every link must keep, as tests that any link can run, and doubles that break things.
//!
//! [`suite`] runs all [laws] against pairs of engines that a link's own crate makes;
//! [`conformance_tests!`](crate::conformance_tests) makes one test of each law, so that a failure
//! names the law. [`Chaos`] wraps a link and misbehaves by a seeded plan, [`Relay`] stands between
//! processes and does the same to bytes. [`check_registry`] is what a
//! [registry](crate::registry) must keep.
//!
//! ```
//! use mooncake_tent::{InProcess, TentEngine, conformance::Fixture};
//!
//! async fn fixture() -> Fixture {
//!     let link = InProcess::new();
//!     let build = |link| TentEngine::builder().in_process(link).build();
//!     let initiator = build(link.another_end()).await.expect("it installs");
//!     let target = build(link).await.expect("it installs");
//!     Fixture::new(initiator, target)
//! }
//!
//! # #[tokio::main] async fn main() {
//! mooncake_tent::conformance::laws::law_04_the_wire_is_never_trusted(&fixture().await).await;
//! # }
//! ```
//!
//! # What a link may not be able to do
//!
//! Every link reads; one that does not write, or cannot tell the target of writes, by its
//! [`Capabilities`](crate::transport::Capabilities), is not asked to, and such requests are refused. Over a link with faults
//! ([`Fixture::with_faults`]) a transfer may fail, but nothing else is forgiven: what is completed
//! is applied, what is refused is untouched, everything ends and the books are closed.

mod chaos;
mod fixture;
pub mod laws;
mod registries;
mod relay;
mod remote;

pub use chaos::{Chaos, ChaosCounts, Mischief};
pub use fixture::Fixture;
pub use registries::check_registry;
pub use relay::{Cut, Flow, Relay, RelayCounts, Rules};

/// Runs every law, each on a fixture of its own, and says on standard error which one.
///
/// # Panics
///
/// A law is broken.
pub async fn suite<F>(fixture: impl Fn() -> F)
where
    F: Future<Output = Fixture>,
{
    macro_rules! run {
        ($_unused:path; $($law:ident)*) => {$(
            eprintln!(concat!("conformance: ", stringify!($law)));
            let with = fixture().await;
            laws::$law(&with).await;
            with.close().await;
        )*};
    }
    crate::for_each_law!(run, fixture);
}

/// Calls a macro with the name of each law.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_law {
    ($with:path, $argument:path) => {
        $with! {
            $argument;
            law_01_completed_means_applied
            law_02_every_task_ends_once
            law_03_quiet_before_reuse
            law_03_a_cancelled_task_ends_and_leaves_memory_alone
            law_04_the_wire_is_never_trusted
            law_07_dead_generations_change_nothing
            law_08_what_is_published_is_true
            law_08_an_arrival_is_told_once_and_after_its_bytes
            law_08_who_is_notified_finds_the_bytes
            law_09_every_wait_has_an_end
            law_11_what_is_full_answers_busy
            law_13_books_return_to_zero
            law_15_errors_speak
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests_of {
    ($fixture:path; $($law:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $law() {
            let with = $fixture().await;
            $crate::conformance::laws::$law(&with).await;
            with.close().await;
        }
    )*};
}

/// Makes a test of each law where it is called; `fixture` is an async function that makes a
/// [`Fixture`](crate::conformance::Fixture). The caller needs tokio with `macros` and
/// `rt-multi-thread`.
#[macro_export]
macro_rules! conformance_tests {
    ($fixture:path) => {
        $crate::for_each_law!($crate::conformance_tests_of, $fixture);
    };
}
