//! Names that a Redis server keeps.

use std::time::Duration;

use parking_lot::Mutex;
use redis::{Client, Cmd, FromRedisValue, aio::MultiplexedConnection};

use super::{
    Claim, Claimed, Entry, Registry,
    contest::{ATTEMPTS, Found, found, is_of, restless},
    trouble,
};
use crate::{
    error::{Error, Result},
    transport::BoxFuture,
};

/// What keys begin with.
const PREFIX: &str = "mooncake/tent/";
/// Puts `ARGV[2]` for so many milliseconds where `ARGV[1]` is, or nothing if that is empty.
const SWAP: &str = "if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end \
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";
/// Deletes `ARGV[1]`.
const TAKE_BACK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
    return redis.call('DEL', KEYS[1]) end return 0";

/// A registry in a Redis server, under keys `mooncake/tent/NAME` that expire.
pub struct RedisRegistry {
    place: String,
    client: Client,
    /// The one that last worked, while no call has it.
    idle: Mutex<Option<MultiplexedConnection>>,
}

impl RedisRegistry {
    /// The server at `url`: `redis://[user:password@]host[:port][/database]`. There is no TLS.
    ///
    /// # Errors
    ///
    /// It is no such address.
    pub fn new(url: &str) -> Result<Self> {
        let client = Client::open(url);
        // Not with the address: it may have a password.
        let client =
            client.map_err(|error| Error::Invalid(format!("address of a Redis: {error}")))?;
        let place = format!("redis://{}", client.get_connection_info().addr());
        Ok(Self {
            place,
            client,
            idle: Mutex::default(),
        })
    }

    async fn run<T: FromRedisValue>(&self, name: &str, command: &Cmd) -> Result<T> {
        let failed = |error: redis::RedisError| trouble(&self.place, name, error);
        // Whoever is dropped half-way takes the connection with it, which may lead nowhere.
        let idle = self.idle.lock().take();
        if let Some(mut connection) = idle {
            match command.query_async(&mut connection).await {
                // The server may have been started anew since. All commands may be given twice.
                Err(error) if error.is_unrecoverable_error() => {}
                answer => {
                    *self.idle.lock() = Some(connection);
                    return answer.map_err(failed);
                }
            }
        }
        let connection = self.client.get_multiplexed_async_connection().await;
        let mut connection = connection.map_err(failed)?;
        let answer = command.query_async(&mut connection).await;
        let answer = answer.map_err(failed)?;
        *self.idle.lock() = Some(connection);
        Ok(answer)
    }

    async fn value(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.run(name, redis::cmd("GET").arg(key(name))).await
    }
}

impl Registry for RedisRegistry {
    fn place(&self) -> &str {
        &self.place
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(async move {
            for _ in 0..ATTEMPTS {
                let value = self.value(claim.name).await?;
                if let Found::Held(holder) = found(&self.place, &claim, value.as_deref())? {
                    return Ok(Claimed::HeldBy(holder));
                }
                let mut swap = redis::cmd("EVAL");
                swap.arg(SWAP).arg(1).arg(key(claim.name));
                swap.arg(value.unwrap_or_default())
                    .arg(claim.entry.to_json())
                    .arg(millis(claim.ttl));
                if self.run::<bool>(claim.name, &swap).await? {
                    return Ok(Claimed::Granted);
                }
            }
            Err(restless(&self.place, claim.name))
        })
    }

    fn withdraw<'a>(&'a self, name: &'a str, entry: &'a Entry) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let value = self.value(name).await?;
            if let Some(value) = value.filter(|value| is_of(entry, value)) {
                let mut take = redis::cmd("EVAL");
                take.arg(TAKE_BACK).arg(1).arg(key(name)).arg(value);
                self.run::<bool>(name, &take).await?;
            }
            Ok(())
        })
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let value = self.value(name).await?;
            let read = |value: Vec<u8>| Entry::from_json(&value);
            let entry = value.map(read).transpose();
            entry.map_err(|what| trouble(&self.place, name, what))
        })
    }
}

fn key(name: &str) -> String {
    format!("{PREFIX}{name}")
}

fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)
}

impl std::fmt::Debug for RedisRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RedisRegistry").field(&self.place).finish()
    }
}
