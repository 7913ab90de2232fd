//! Nodes offer their memory to the master, and do so anew when it has forgotten them.

use mooncake_proto::{Fault, Retry};
use mooncake_store::Time;

use super::{MS, World};
use crate::{Micros, node::Mount, plan::Party, session::Tag};

const MOUNT_BUDGET: Micros = 500 * MS;
const MOUNT_PAUSE: Micros = 10 * MS;

impl World {
    pub(super) fn greeted(&mut self, at: usize, resumed: bool) {
        match &mut self.nodes[at].mount {
            Mount::Never => self.mount(at),
            _ if resumed => {}
            Mount::Asked { again } => *again = true,
            Mount::Due(_) | Mount::Done => self.mount_anew(at),
        }
    }

    pub(super) fn mount_anew(&mut self, at: usize) {
        if let Some(client) = self.nodes[at].client() {
            self.clients[client].core.withdraw(Time(self.now));
        }
        self.nodes[at].generation += 1;
        self.mount(at);
    }

    pub(super) fn mount(&mut self, at: usize) {
        let now = self.now;
        let node = &mut self.nodes[at];
        node.mount = Mount::Asked { again: false };
        let (request, deadline) = (node.mount_request(), Time(now + MOUNT_BUDGET));
        let session = &mut self.peer(Party::Node(at)).session;
        session.submit(now, Tag::Mount, request, deadline);
    }

    pub(super) fn mounted(&mut self, at: usize, result: Result<(), Fault>) {
        let now = self.now;
        let node = &mut self.nodes[at];
        let again = node.mount == Mount::Asked { again: true };
        node.mount = match result {
            Ok(()) if !again => Mount::Done,
            Err(fault) if fault.retry == Retry::Never => {
                let name = node.name.clone();
                self.broken(format!("{name} is refused for good: {fault:?}"));
                return;
            }
            _ => Mount::Due(now + MOUNT_PAUSE),
        };
        if let (Mount::Done, Some(client)) = (node.mount, node.client()) {
            let (identity, life) = (node.identity(), node.generation);
            let first = (identity << 40) + (u64::from(life) << 20);
            let segment = node.segment();
            self.clients[client].core.lend(Time(now), segment, first);
        }
    }
}
