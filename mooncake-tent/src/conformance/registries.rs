//! What every registry must keep.

use std::time::{Duration, Instant};

use crate::{
    Incarnation,
    registry::{Claim, Claimed, Entry, Registry},
};

/// How much later than asked a name may go.
const GRACE: Duration = Duration::from_secs(10);

/// Checks a registry through two clients of it, with names of its own and leases of this length, which
/// is to be short: the checks wait for some to end.
///
/// # Panics
///
/// A promise is broken.
pub async fn check_registry(one: &dyn Registry, other: &dyn Registry, ttl: Duration) {
    let run = Names {
        run: rand::random(),
        one,
        other,
        ttl,
    };
    run.a_name_leads_to_who_claimed_it_and_to_nobody_else()
        .await;
    run.a_holder_that_is_known_to_be_gone_is_replaced_and_no_other()
        .await;
    run.only_its_holder_gives_a_name_back().await;
    run.of_many_that_claim_a_name_at_once_one_gets_it().await;
    run.any_letters_make_a_name().await;
    run.a_name_stays_while_it_is_claimed_and_goes_by_itself_afterwards()
        .await;
}

struct Names<'a> {
    run: u64,
    one: &'a dyn Registry,
    other: &'a dyn Registry,
    ttl: Duration,
}

impl Names<'_> {
    fn name(&self, name: &str) -> String {
        format!("{name}-{:x}", self.run)
    }

    async fn claim(&self, by: &dyn Registry, name: &str, entry: &Entry) -> Claimed {
        self.replace(by, name, entry, None).await
    }

    async fn replace(
        &self,
        by: &dyn Registry,
        name: &str,
        entry: &Entry,
        replaces: Option<&Entry>,
    ) -> Claimed {
        let claim = Claim {
            name,
            entry,
            ttl: self.ttl,
            replaces,
        };
        by.claim(claim).await.expect("the registry is there")
    }

    /// What both clients say.
    async fn holder(&self, name: &str) -> Option<Entry> {
        let (one, other) = (self.one.look_up(name), self.other.look_up(name));
        let (one, other) = (one.await, other.await);
        let [one, other] = [one, other].map(|said| said.expect("the registry is there"));
        assert_eq!(one, other, "{name}");
        one
    }

    async fn a_name_leads_to_who_claimed_it_and_to_nobody_else(&self) {
        let (name, a, b) = (self.name("held"), entry(1), entry(2));
        assert_eq!(self.holder(&name).await, None);
        let by_a = self.claim(self.one, &name, &a).await;
        assert_eq!(by_a, Claimed::Granted);
        assert_eq!(self.holder(&name).await.as_ref(), Some(&a));
        for by in [self.one, self.other] {
            let by_b = self.claim(by, &name, &b).await;
            assert_eq!(by_b, Claimed::HeldBy(a.clone()), "it is taken");
            let again = self.claim(by, &name, &a).await;
            assert_eq!(again, Claimed::Granted, "by whatever client");
        }
        assert_eq!(self.holder(&name).await, Some(a));
    }

    async fn a_holder_that_is_known_to_be_gone_is_replaced_and_no_other(&self) {
        let (name, a, b, c) = (self.name("replaced"), entry(1), entry(2), entry(3));
        self.claim(self.one, &name, &a).await;
        let by_c = self.replace(self.other, &name, &c, Some(&b)).await;
        assert_eq!(by_c, Claimed::HeldBy(a.clone()));
        let by_b = self.replace(self.other, &name, &b, Some(&a)).await;
        assert_eq!(by_b, Claimed::Granted);
        assert_eq!(self.holder(&name).await.as_ref(), Some(&b));
        let by_a = self.claim(self.one, &name, &a).await;
        assert_eq!(by_a, Claimed::HeldBy(b), "it has lost it");
    }

    async fn only_its_holder_gives_a_name_back(&self) {
        let (name, a, b) = (self.name("given-back"), entry(1), entry(2));
        self.claim(self.one, &name, &a).await;
        let back = |by: &'static str, done: crate::Result<()>| {
            done.unwrap_or_else(|error| panic!("{by}: {error}"));
        };
        back("another", self.other.withdraw(&name, &b).await);
        assert_eq!(self.holder(&name).await.as_ref(), Some(&a));
        back("its holder", self.one.withdraw(&name, &a).await);
        assert_eq!(self.holder(&name).await, None);
        back("its holder, again", self.one.withdraw(&name, &a).await);
        let by_b = self.claim(self.other, &name, &b).await;
        assert_eq!(by_b, Claimed::Granted);
        // The first one, whose name was taken from under it, has it again when it is free.
        back("the second", self.other.withdraw(&name, &b).await);
        assert_eq!(self.claim(self.one, &name, &a).await, Claimed::Granted);
    }

    async fn of_many_that_claim_a_name_at_once_one_gets_it(&self) {
        let name = &self.name("wanted");
        let entries: Vec<_> = (1..=6).map(entry).collect();
        let [a, b, c, d, e, f] = &entries[..] else {
            unreachable!("there are six")
        };
        let (one, other) = (self.one, self.other);
        let claims = tokio::join!(
            self.claim(one, name, a),
            self.claim(other, name, b),
            self.claim(one, name, c),
            self.claim(other, name, d),
            self.claim(one, name, e),
            self.claim(other, name, f),
        );
        let claims = [claims.0, claims.1, claims.2, claims.3, claims.4, claims.5];
        let holder = self.holder(name).await.expect("one has it");
        for (entry, claimed) in entries.iter().zip(claims) {
            let expected = match *entry == holder {
                true => Claimed::Granted,
                false => Claimed::HeldBy(holder.clone()),
            };
            assert_eq!(claimed, expected);
        }
    }

    async fn any_letters_make_a_name(&self) {
        for odd in [
            "a/b?c&d=e#f%20",
            "ü-名-\u{1f680}",
            "..",
            "'\"\\$`*",
            "%",
            "+",
        ] {
            let (name, a) = (self.name(odd), entry(1));
            assert_eq!(self.claim(self.one, &name, &a).await, Claimed::Granted);
            assert_eq!(self.holder(&name).await, Some(a), "{name}");
            assert_eq!(self.holder(&format!("{name}x")).await, None, "{name}");
        }
    }

    async fn a_name_stays_while_it_is_claimed_and_goes_by_itself_afterwards(&self) {
        let (name, a, b) = (self.name("leased"), entry(1), entry(2));
        let begun = Instant::now();
        let longer = self.ttl * 3 + Duration::from_secs(3);
        while begun.elapsed() < longer {
            let by_a = self.claim(self.one, &name, &a).await;
            assert_eq!(by_a, Claimed::Granted);
            tokio::time::sleep(self.ttl / 4).await;
            assert_eq!(self.holder(&name).await.as_ref(), Some(&a));
        }
        let end = Instant::now() + self.ttl + GRACE;
        while self.holder(&name).await.is_some() {
            assert!(Instant::now() < end, "nobody claims it any more");
            tokio::time::sleep(self.ttl / 20).await;
        }
        let by_b = self.claim(self.other, &name, &b).await;
        assert_eq!(by_b, Claimed::Granted);
        let by_a = self.claim(self.one, &name, &a).await;
        assert_eq!(by_a, Claimed::HeldBy(b));
    }
}

fn entry(number: u64) -> Entry {
    Entry {
        control: format!("127.0.0.1:{}", 1000 + number),
        incarnation: Incarnation::from_u64(number).expect("it is not 0"),
    }
}
