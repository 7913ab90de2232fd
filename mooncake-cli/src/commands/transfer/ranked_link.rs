//! A link as a real request found it.

use mooncake_tent::selector::{Merit, Ranking};
use serde::Serialize;

/// A link, and why it stands where it stands.
#[derive(Clone, Debug, Serialize)]
pub struct RankedLink {
    /// Its name.
    pub link: String,
    /// Its place, the best being 1; `null`: it cannot carry the request.
    pub place: Option<u64>,
    /// The reason.
    pub why: String,
}

impl RankedLink {
    /// All that a ranking tells of.
    pub(super) fn all(ranking: &Ranking) -> Vec<Self> {
        let ranked = ranking.ranked.iter().zip(1..).map(|(link, place)| Self {
            link: link.name.clone(),
            place: Some(place),
            why: {
                let merits: Vec<_> = link.merits.iter().map(Merit::to_string).collect();
                merits.join(", ")
            },
        });
        let excluded = ranking.excluded.iter().map(|link| Self {
            link: link.name.clone(),
            place: None,
            why: link.why.to_string(),
        });
        ranked.chain(excluded).collect()
    }

    pub(super) fn place(&self) -> String {
        self.place
            .map_or_else(|| "-".to_owned(), |place| place.to_string())
    }
}
