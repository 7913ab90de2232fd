//! A registry in this process that does what it is told.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use mooncake_tent::{
    Error, Result,
    registry::{Claim, Claimed, Entry, Registry},
    transport::BoxFuture,
};

#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    names: Arc<Mutex<HashMap<String, Held>>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct Held {
    entry: Entry,
    until: Instant,
}

#[derive(Debug, Default)]
struct State {
    away: bool,
    garbled: Option<String>,
    look_ups: usize,
}

impl Shelf {
    /// Nobody reaches it from now on, or everybody does again.
    pub(crate) fn away(&self, away: bool) {
        self.state.lock().unwrap().away = away;
    }

    /// What it has under this name makes no sense.
    pub(crate) fn garble(&self, name: &str) {
        self.state.lock().unwrap().garbled = Some(name.to_owned());
    }

    pub(crate) fn forget(&self, name: &str) {
        self.names.lock().unwrap().remove(name);
    }

    pub(crate) fn put(&self, name: &str, entry: Entry, ttl: Duration) {
        let until = Instant::now() + ttl;
        let held = Held { entry, until };
        self.names.lock().unwrap().insert(name.to_owned(), held);
    }

    pub(crate) fn holder(&self, name: &str) -> Option<Entry> {
        let mut names = self.names.lock().unwrap();
        names.retain(|_, held| held.until > Instant::now());
        names.get(name).map(|held| held.entry.clone())
    }

    pub(crate) fn look_ups(&self) -> usize {
        self.state.lock().unwrap().look_ups
    }

    fn answer(&self, name: &str) -> Result<()> {
        let state = self.state.lock().unwrap();
        let message = match &state.garbled {
            _ if state.away => "it is away",
            Some(garbled) if garbled == name => "it is garbled",
            _ => return Ok(()),
        };
        Err(Error::Registry {
            registry: self.place().to_owned(),
            name: name.to_owned(),
            message: message.to_owned(),
        })
    }
}

impl Registry for Shelf {
    fn place(&self) -> &str {
        "a shelf"
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(async move {
            self.answer(claim.name)?;
            if let Some(holder) = self.holder(claim.name)
                && claim.yields_to(&holder)
            {
                return Ok(Claimed::HeldBy(holder));
            }
            self.put(claim.name, claim.entry.clone(), claim.ttl);
            Ok(Claimed::Granted)
        })
    }

    fn withdraw<'a>(&'a self, name: &'a str, entry: &'a Entry) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.answer(name)?;
            if self.holder(name).as_ref() == Some(entry) {
                self.forget(name);
            }
            Ok(())
        })
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            self.state.lock().unwrap().look_ups += 1;
            self.answer(name)?;
            Ok(self.holder(name))
        })
    }
}
