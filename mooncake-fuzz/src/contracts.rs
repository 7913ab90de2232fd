//! Contracts of tenants.

use mooncake_tent::admission::{Contract, Contracts};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "contracts",
    run,
    words: &[
        b"{\"version\": 1}",
        b"\"version\": 1, ",
        b"\"defaults\": {}",
        b"\"tenants\": [",
        b"{\"name\": \"a\"}",
        b"\"intents\": {\"CHECKPOINT\": {}}",
        b"\"FOREGROUND_GET\"",
        b"\"MIGRATION\"",
        b"\"priority\": \"high\"",
        b"\"priority\": 2",
        b"\"max_inflight_bytes\": 1",
        b"\"max_inflight_requests\": 18446744073709551615",
        b"\"allowed_degraded_actions\": [\"delay\", \"reject\"]",
        b"\"fallback_transport\"",
        b"null",
        b"0",
        b", ",
        b"\\u0000",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    let contracts = match Contracts::from_json(text) {
        Ok(contracts) => contracts,
        // What is quoted may have quotes itself, so only what comes before it tells kinds apart.
        Err(error) => {
            let message = error.to_string();
            return shape(message.split(['"', '`']).next().map(words));
        }
    };
    let again = Contracts::from_json(&contracts.to_json());
    assert_eq!(
        again.as_ref(),
        Ok(&contracts),
        "what we write is what we read"
    );
    let (defaults, tenants) = (contracts.defaults(), contracts.tenants());
    let built = Contracts::new(defaults.clone(), tenants.to_vec());
    assert_eq!(built.as_ref(), Ok(&contracts), "whoever builds it");

    let mut names: Vec<_> = tenants.iter().map(|tenant| &*tenant.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), tenants.len(), "each tenant once");
    assert!(!names.contains(&""), "each by its name");
    let own = tenants.iter().flat_map(|tenant| {
        let special = tenant.intents.values();
        [&tenant.defaults].into_iter().chain(special)
    });
    let mut seen = Vec::new();
    for contract in [defaults].into_iter().chain(own) {
        let Contract {
            priority,
            max_inflight_bytes,
            max_inflight_requests,
            allowed_degraded_actions,
            ..
        } = contract;
        let limits = [max_inflight_bytes, max_inflight_requests];
        assert!(!limits.contains(&&Some(0)), "nothing would go through");
        let actions = allowed_degraded_actions.as_ref().map(Vec::len);
        seen.push((
            priority.is_some(),
            limits.map(Option::is_some),
            actions.map(|count| count.min(2)),
        ));
    }
    seen.truncate(3);
    shape((seen, tenants.len().min(3)))
}
