//! Clients and the segments that they bring.

use super::{
    Answer, Caller, ClientId, Failure, MAX_NAME_BYTES, Operation, SegmentId, SegmentIdentity,
    SegmentUsage, State, clients::Client, segments::Mount,
};
use crate::Time;

impl State {
    pub(super) fn hello(
        &mut self,
        now: Time,
        id: ClientId,
        tenant: &str,
        name: &str,
    ) -> Result<Answer, Failure> {
        if id == ClientId::NOBODY {
            return Err(Failure::invalid("a client's incarnation is not 0"));
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(Failure::invalid(format!(
                "a name has at most {MAX_NAME_BYTES} bytes"
            )));
        }
        let tenant = self.tenants.intern(tenant)?;
        let resumed = match self.clients.all.get_mut(&id) {
            Some(Client {
                tenant: Some(bound),
                ..
            }) if *bound != tenant => {
                let bound = self.tenants.name(*bound);
                return Err(Failure::invalid(format!(
                    "client {id} works on tenant {bound:?} for all its life"
                )));
            }
            Some(client) => {
                client.tenant = Some(tenant);
                client.unheard = self.leases.asked_by(id);
                name.clone_into(&mut client.name);
                let heard = client.heard;
                self.seen(now, id);
                heard
            }
            None => {
                let client = Client::new(Some(tenant), name.to_owned(), now);
                self.clients.all.insert(id, client);
                false
            }
        };
        Ok(Answer::Hello { resumed })
    }

    /// Notes a sign of life; `false`: of somebody unknown.
    pub(super) fn seen(&mut self, now: Time, id: ClientId) -> bool {
        let Some(client) = self.clients.all.get_mut(&id) else {
            return false;
        };
        client.last_seen = now;
        if std::mem::take(&mut client.suspect) {
            self.segments.suspect(id, false);
            self.storages.suspect(id, false);
        }
        true
    }

    /// Prefers others to this client from now on, until it is heard again.
    pub(super) fn suspect(&mut self, id: ClientId) {
        if let Some(client) = self.clients.all.get_mut(&id) {
            client.suspect = true;
            self.segments.suspect(id, true);
            self.storages.suspect(id, true);
        }
    }

    pub(super) fn mount(
        &mut self,
        now: Time,
        caller: &Caller,
        client: ClientId,
        segment: &SegmentIdentity,
    ) -> Result<Answer, Failure> {
        if segment.owner != client {
            let owner = segment.owner;
            return Err(Failure::IllegalClient { owner });
        }
        let replaced = match self.segments.admit(segment)? {
            Mount::Known => return Ok(Answer::Done),
            Mount::New => None,
            Mount::Replaces(slot) => Some(slot),
        };
        self.promises.admit()?;
        let operation = Operation::Mount(segment.clone());
        let ticket = self.promises.begin(caller, &operation, Answer::Done);
        if let Some(slot) = replaced {
            self.drop_segment(now, slot, Some(ticket));
        }
        let mut segment = segment.clone();
        if !self.seen(now, client) {
            // Through a single call: from now on the owner must ping.
            let owner = Client::new(None, segment.owner_name.clone(), now);
            self.clients.all.insert(client, owner);
        } else if segment.owner_name.is_empty() {
            segment
                .owner_name
                .clone_from(&self.clients.all[&client].name);
        }
        self.segments.mount(segment);
        Ok(self.close_promise(ticket))
    }

    pub(super) fn unmount(
        &mut self,
        now: Time,
        caller: &Caller,
        client: ClientId,
        id: SegmentId,
    ) -> Result<Answer, Failure> {
        let slot = self.own_segment(client, id)?;
        self.promises.admit()?;
        let operation = Operation::Unmount(id);
        let ticket = self.promises.begin(caller, &operation, Answer::Done);
        self.drop_segment(now, slot, Some(ticket));
        Ok(self.close_promise(ticket))
    }

    /// The client ends its session. What it began is cancelled, what it brought is unmounted.
    pub(super) fn goodbye(
        &mut self,
        now: Time,
        caller: &Caller,
        id: ClientId,
        quiet: bool,
    ) -> Answer {
        let operation = Operation::Goodbye { quiet };
        let ticket = self.promises.begin(caller, &operation, Answer::Done);
        self.drop_client(now, id, Some(ticket));
        if quiet {
            for covered in self.leases.release_all(id) {
                self.uncover(now, &covered);
            }
            self.quieten_puts_of(now, id);
        }
        self.close_promise(ticket)
    }

    /// Forgets a client with what it began and brought.
    fn drop_client(&mut self, now: Time, id: ClientId, ticket: Option<u64>) {
        self.clients.all.remove(&id);
        self.drop_storages_of(id);
        for slot in self.segments.owned_by(id) {
            self.drop_segment(now, slot, ticket);
        }
        self.drop_puts_of(now, id);
    }

    pub(super) fn list_segments(&self, now: Time) -> Vec<SegmentUsage> {
        let usage = |mounted: &super::segments::Mounted| SegmentUsage {
            segment: mounted.identity.clone(),
            used_bytes: mounted.live_bytes,
            quarantined_bytes: mounted.quarantined_bytes,
            granted_bytes: mounted.grants.bytes(),
            objects: mounted.live,
            silent: self
                .clients
                .all
                .get(&mounted.identity.owner)
                .map(|owner| now.since(owner.last_seen))
                .unwrap_or_default(),
        };
        self.segments.iter().map(usage).collect()
    }

    /// Drops what silent clients brought and began. Their leases end by themselves.
    pub(super) fn expire_clients(&mut self, now: Time) {
        for id in self.clients.expired(now, self.settings.client_ttl) {
            self.totals.expired_clients += 1;
            self.drop_client(now, id, None);
        }
        for id in self.clients.suspicious(now, self.settings.suspect_after) {
            self.suspect(id);
        }
    }
}
