//! The process at the other end, as its segment descriptor presents it.

use crate::identity::PeerId;

/// A process that offers a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    id: PeerId,
    endpoints: Vec<(String, String)>,
}

impl Peer {
    /// A peer with the address of each link on which it accepts connections.
    pub fn new(id: PeerId, endpoints: Vec<(String, String)>) -> Self {
        Self { id, endpoints }
    }

    /// Which life of which process.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// The name of each such link, and the address.
    pub(crate) fn endpoints(&self) -> &[(String, String)] {
        &self.endpoints
    }

    /// Where `link` reaches it, in the link's own form.
    pub fn endpoint(&self, link: &str) -> Option<&str> {
        self.endpoints
            .iter()
            .find(|(name, _)| name == link)
            .map(|(_, address)| address.as_str())
    }
}
