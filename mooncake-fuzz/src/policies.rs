//! Policies of the selector.

use mooncake_tent::selector::{LinkFacts, Policies, PolicyError, RequestFacts, TransportSelector};
use mooncake_tent::transport::{Capabilities, Op};
use mooncake_tent::{Intent, Priority};

use crate::{
    Target,
    shape::{shape, words},
};

pub(crate) const TARGET: Target = Target {
    name: "policies",
    run,
    words: &[
        b"[{}]",
        b"{\"policy\": [",
        b"\"name\": \"a\"",
        b"\"segment_type\": \"file\"",
        b"\"same_machine\": true",
        b"\"local_memory\": \"*\"",
        b"\"remote_memory\": \"cpu\"",
        b"\"min_size\": 1",
        b"\"max_size\": 4096",
        b"\"priority\": 1",
        b"\"high\"",
        b"\"intent_type\": \"MIGRATION\"",
        b"\"tenant\": \"t\"",
        b"\"devices\": [\"mlx5_0\"]",
        b"\"transports\": [\"tcp\", \"io_uring\"]",
        b"\"order\": \"listed\"",
        b"\"qp_pool\": \"p\"",
        b"\"service_level\": 15",
        b"\"traffic_class\": 255",
        b"null",
        b", ",
        b"*",
        b"\\u0000",
    ],
};

fn run(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    let policies = match Policies::from_json(text) {
        Ok(policies) => policies,
        Err(PolicyError::Field { field, .. }) => return shape(field),
        // What is quoted may have quotes itself, so only what comes before it tells kinds apart.
        Err(error) => {
            let message = error.to_string();
            return shape(message.split(['"', '`']).next().map(words));
        }
    };
    let again = Policies::from_json(&policies.to_json());
    assert_eq!(
        again.as_ref(),
        Ok(&policies),
        "what we write is what we read"
    );

    let count = policies.len();
    let selector = TransportSelector::with_policies(policies);
    let links = ["tcp", "file", "shm"].map(|name| LinkFacts::new(name, Capabilities::read_write()));
    let mut seen = Vec::new();
    for (priority, intent) in Priority::ALL.into_iter().cycle().zip(Intent::ALL) {
        let request = RequestFacts {
            priority,
            intent,
            ..RequestFacts::new(Op::Read, 4096)
        };
        let ranking = selector.rank(&request, &links);
        let carried = ranking.ranked.len();
        let installed = ranking.excluded.iter().filter(|link| link.index.is_some());
        assert_eq!(carried + installed.count(), links.len(), "{ranking}");
        seen.push((ranking.policy.is_some(), carried));
    }
    shape((seen, count.min(3)))
}
