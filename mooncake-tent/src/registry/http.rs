//! Names that a small HTTP service keeps, as `mooncake metadata` does.

use std::{fmt::Write, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Method, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Claim, Claimed, Entry, Registry, trouble};
use crate::{
    error::{Error, Result},
    transport::BoxFuture,
};

/// Longer answers are not read.
const MOST: usize = 64 << 10;
/// What keys begin with, so that others may share the service.
const PREFIX: &str = "mooncake/tent/";

/// A registry that is reached over HTTP. Each call has a connection of its own, so a service that
/// was started anew is just as good; its names come back as their owners renew their leases.
///
/// `GET`, `PUT` and `DELETE` on the path with `?key=mooncake/tent/NAME`; `owner` says whose a value is,
/// `ttl_ms` how long it stays. 404: there is none; 409: another owner has it, whose value is the
/// answer.
#[derive(Clone, Debug)]
pub struct HttpRegistry {
    url: String,
    /// `host:port`.
    host: String,
    path: String,
}

impl HttpRegistry {
    /// The service at `url`, such as `http://10.0.0.1:8080/metadata`; without a path, it is that one.
    ///
    /// # Errors
    ///
    /// It is no such address. There is no TLS.
    pub fn new(url: &str) -> Result<Self> {
        let invalid = |why: &str| Error::Invalid(format!("registry {url:?}: {why}"));
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| invalid("it must begin with http://"))?;
        let (host, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let sensible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !sensible(rest) {
            return Err(invalid("it names no host"));
        }
        if path.contains(['?', '#']) {
            return Err(invalid("it may have a path, but nothing after it"));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| {
            port.parse::<u16>().is_ok() // `]` of an address in brackets is no port
        });
        Ok(Self {
            url: url.to_owned(),
            host: match has_port {
                true => host.to_owned(),
                false => format!("{host}:80"),
            },
            path: match path {
                "" | "/" => "/metadata".to_owned(),
                path => path.to_owned(),
            },
        })
    }

    async fn call(
        &self,
        method: Method,
        name: &str,
        more: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes)> {
        let failed = |error: &dyn std::error::Error| trouble(&self.url, name, cause(error));
        let socket = TcpStream::connect(&self.host).await;
        let socket = socket.map_err(|error| failed(&error))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket))
            .await
            .map_err(|error| failed(&error))?;
        let uri = format!("{}?key={}{more}", self.path, escaped(name));
        let request = hyper::Request::builder()
            .method(method)
            .uri(uri)
            .header(HOST, &self.host)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| failed(&error))?;
        let exchange = async {
            let answer = sender
                .send_request(request)
                .await
                .map_err(|error| failed(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), MOST).collect().await;
            let body = body.map_err(|error| trouble(&self.url, name, error))?;
            Ok((status, body.to_bytes()))
        };
        tokio::pin!(connection, exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            ended = &mut connection => match ended {
                // What was answered before it ended is still to be read.
                Ok(()) => exchange.await,
                Err(error) => Err(failed(&error)),
            },
        }
    }

    fn refused(&self, name: &str, status: StatusCode, body: &[u8]) -> Error {
        let said: String = String::from_utf8_lossy(body).chars().take(200).collect();
        trouble(
            &self.url,
            name,
            format_args!("it answers {status}: {}", said.trim_end()),
        )
    }

    fn read(&self, name: &str, value: &[u8]) -> Result<Entry> {
        Entry::from_json(value).map_err(|what| trouble(&self.url, name, what))
    }
}

impl Registry for HttpRegistry {
    fn place(&self) -> &str {
        &self.url
    }

    fn claim<'a>(&'a self, claim: Claim<'a>) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(async move {
            let Claim {
                name, entry, ttl, ..
            } = claim;
            let mut more = format!("&owner={}&ttl_ms={}", entry.incarnation, millis(ttl));
            if let Some(gone) = claim.replaces {
                // Writing to a string does not fail.
                let _ = write!(more, "&replaces={}", gone.incarnation);
            }
            let (status, body) = self.call(Method::PUT, name, &more, entry.to_json()).await?;
            match status {
                StatusCode::OK => Ok(Claimed::Granted),
                StatusCode::CONFLICT => Ok(Claimed::HeldBy(self.read(name, &body)?)),
                status => Err(self.refused(name, status, &body)),
            }
        })
    }

    fn withdraw<'a>(&'a self, name: &'a str, entry: &'a Entry) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let more = format!("&owner={}", entry.incarnation);
            let (status, body) = self
                .call(Method::DELETE, name, &more, String::new())
                .await?;
            match status {
                StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(()),
                status => Err(self.refused(name, status, &body)),
            }
        })
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let (status, body) = self.call(Method::GET, name, "", String::new()).await?;
            match status {
                StatusCode::OK => self.read(name, &body).map(Some),
                StatusCode::NOT_FOUND => Ok(None),
                status => Err(self.refused(name, status, &body)),
            }
        })
    }
}

fn millis(ttl: Duration) -> u128 {
    ttl.as_millis().max(1)
}

/// The key of a name, as part of a query.
fn escaped(name: &str) -> String {
    let mut escaped = PREFIX.to_owned();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => {
                // Writing to a string does not fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

/// The innermost cause says most.
fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart_and_nonsense_is_refused() {
        let parts = |url: &str| HttpRegistry::new(url).map(|it| (it.host, it.path));
        let is = |host: &str, path: &str| (host.to_owned(), path.to_owned());
        assert_eq!(parts("http://a:81").unwrap(), is("a:81", "/metadata"));
        assert_eq!(parts("http://a/").unwrap(), is("a:80", "/metadata"));
        assert_eq!(parts("http://[::1]").unwrap(), is("[::1]:80", "/metadata"));
        assert_eq!(parts("http://a:81/x/y").unwrap(), is("a:81", "/x/y"));
        for bad in [
            "",
            "a:81",
            "https://a",
            "http://",
            "http:///x",
            "http://u@a",
            "http://a/x?y",
            "http://a b",
        ] {
            assert!(parts(bad).is_err(), "{bad:?}");
        }
        assert_eq!(escaped("a/ü&b"), "mooncake/tent/a/%C3%BC%26b");
    }
}
