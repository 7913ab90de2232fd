//! Every target on its corpus and on inputs that are made from it.

use std::time::Duration;

use mooncake_fuzz::{Campaign, TARGETS, Target};

/// Where inputs that fail are written.
const FAILURES: &str = env!("CARGO_TARGET_TMPDIR");

fn a_few(target: &str) {
    let target = Target::named(target);
    let mut campaign = Campaign::new(target, 1, FAILURES);
    let known = campaign.shapes();
    assert!(known > 2, "the corpus only shows {known} kinds of result");
    campaign.inputs(20_000);
}

fn a_minute(target: &str) {
    let seed = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_secs());
    let mut campaign = Campaign::new(Target::named(target), seed, FAILURES);
    let count = campaign.time(Duration::from_secs(60));
    println!(
        "{target}: {count} inputs, {} kinds of result",
        campaign.shapes()
    );
}

macro_rules! campaigns {
    ($($target:ident)*) => {
        $(mod $target {
            #[test]
            fn keeps_its_promises_on_its_corpus_and_on_what_is_made_from_it() {
                super::a_few(stringify!($target));
            }

            #[test]
            #[ignore = "a minute long"]
            fn keeps_its_promises_for_a_minute() {
                super::a_minute(stringify!($target));
            }
        })*

        #[test]
        fn every_target_has_its_campaigns() {
            let named = [$(stringify!($target)),*];
            assert_eq!(TARGETS.map(|target| target.name), named);
        }
    };
}

campaigns! {
    answers buckets configuration contracts deltas descriptors entries frames handles operations policies
    requests topology trace units
}
