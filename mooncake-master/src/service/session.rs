//! One client's stream: frames of operations in, frames of events out.
//!
//! The outgoing stream pulls the incoming one. A client that does not read its answers is not read
//! from either, and nothing is queued for it but what others caused.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use mooncake_proto::{
    Fault, Retry,
    master::{Answer, ClientFrame, Event, Fenced, Hello, ServerFrame, event},
    status::ErrorCode,
};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::{Shared, answer, request, sessions::Registration};
use crate::server::Vigil;
use crate::state::{self, Caller, ClientId, Command};

/// The version of the session protocol that this master speaks.
const PROTOCOL: u32 = 1;
/// Incoming frames and outgoing events that one outgoing frame gathers, at most.
const FRAMES_A_POLL: usize = 64;
const EVENTS_A_FRAME: usize = 1024;
/// Answers about so many keys are sent before more is read: the client works on them while we work
/// on what comes next. If all was answered at once, the two would only ever wait for each other.
const ENTRIES_A_FRAME: usize = 128;
/// The stream rests so often for a frame to be sent: the encoder looks for one more message before
/// it lets go of the first, and the connection writes when there is no more.
const RESTS_TO_SEND: u8 = 2;

/// What a client's session receives: answers to its operations, and what others caused.
#[derive(Debug)]
pub struct SessionStream {
    shared: Arc<Shared>,
    inbound: Streaming<ClientFrame>,
    /// From hello on.
    registration: Option<Registration>,
    /// How the stream ends, once what came before is sent.
    end: Option<Result<(), Status>>,
    /// How often to rest before more is read.
    rests: u8,
}

impl SessionStream {
    pub(crate) fn new(shared: Arc<Shared>, inbound: Streaming<ClientFrame>) -> Self {
        Self {
            shared,
            inbound,
            registration: None,
            end: None,
            rests: 0,
        }
    }

    /// Tells how many keys it was about.
    fn take_in(&mut self, frame: ClientFrame, events: &mut Vec<Event>) -> Result<usize, Status> {
        match (frame.hello, &self.registration) {
            (Some(hello), None) if frame.operations.is_empty() => {
                let (registration, event) = greet(&self.shared, hello)?;
                self.registration = Some(registration);
                events.push(event);
                Ok(0)
            }
            (None, Some(registration)) => {
                let asked = frame.operations.iter();
                let entries = asked.map(|one| one.operation.as_ref().map_or(1, request::entries));
                let entries = entries.map(|entries| entries.max(1)).sum();
                Vigil::beat();
                perform(
                    &self.shared,
                    registration,
                    frame.acknowledged_below,
                    frame.operations,
                    events,
                );
                Ok(entries)
            }
            (Some(_), Some(_)) => Err(misuse("hello was said before on this stream")),
            (_, None) => Err(misuse(
                "the first frame of a stream says hello and nothing else",
            )),
        }
    }

    /// Reads what has come; `Pending` when the client must speak next.
    fn poll_inbound(&mut self, cx: &mut Context<'_>, events: &mut Vec<Event>) -> Poll<()> {
        let mut entries = 0;
        for _ in 0..FRAMES_A_POLL {
            if entries >= ENTRIES_A_FRAME {
                self.rests = RESTS_TO_SEND;
                break;
            }
            let frame = ready!(Pin::new(&mut self.inbound).poll_next(cx));
            let ended = match frame {
                Some(Ok(frame)) => match self.take_in(frame, events) {
                    Ok(more) => {
                        entries += more;
                        continue;
                    }
                    Err(status) => Err(status),
                },
                // The client is gone, or sent what cannot be read; it may come back and resume.
                Some(Err(status)) => Err(status),
                None => Ok(()),
            };
            self.end = Some(ended);
            break;
        }
        Poll::Ready(())
    }
}

impl Stream for SessionStream {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(end) = &mut this.end {
            let end = std::mem::replace(end, Ok(()));
            return Poll::Ready(end.err().map(Err));
        }
        if let Some(registration) = &mut this.registration
            && let Poll::Ready(reason) = Pin::new(&mut registration.fence).poll(cx)
        {
            this.end = Some(Ok(()));
            let reason = reason.unwrap_or("the session is over").to_owned();
            let event = event::Event::Fenced(Fenced { reason });
            return Poll::Ready(Some(Ok(frame_of(vec![Event { event: Some(event) }]))));
        }
        if this.rests > 0 {
            this.rests -= 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut events = Vec::new();
        let read = this.poll_inbound(cx, &mut events);
        if let Some(registration) = &mut this.registration {
            while events.len() < EVENTS_A_FRAME
                && let Poll::Ready(Some(event)) = registration.events.poll_recv(cx)
            {
                events.push(event);
            }
        }
        if !events.is_empty() {
            return Poll::Ready(Some(Ok(frame_of(events))));
        }
        if read.is_ready() {
            // Frames without operations, an end without answers, or a fence not polled yet.
            cx.waker().wake_by_ref();
        } else if this.registration.is_none() && this.shared.is_stopping() {
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}

impl Drop for SessionStream {
    fn drop(&mut self) {
        if let Some(registration) = &self.registration
            && self.shared.sessions.leave(registration)
        {
            self.shared.apply(&Command::Lost {
                client: registration.client,
            });
        }
    }
}

fn frame_of(events: Vec<Event>) -> ServerFrame {
    ServerFrame { events }
}

fn misuse(what: &str) -> Status {
    Fault::new(ErrorCode::InvalidParams, Retry::Never, what).into()
}

fn greet(shared: &Arc<Shared>, hello: Hello) -> Result<(Registration, Event), Status> {
    if hello.protocol != PROTOCOL {
        let what = format!(
            "the client speaks session protocol {}, this master speaks {PROTOCOL}",
            hello.protocol
        );
        return Err(Fault::new(ErrorCode::NotSupported, Retry::Never, what).into());
    }
    let client = ClientId(hello.client_incarnation);
    let tenant = match hello.tenant.as_str() {
        "" => state::DEFAULT_TENANT.to_owned(),
        _ => hello.tenant,
    };
    let command = Command::Hello {
        client,
        tenant: tenant.clone(),
        name: hello.name,
    };
    let resumed = match shared.apply(&command) {
        state::Answer::Hello { resumed } => resumed,
        state::Answer::Refused(failure) => return Err(super::fault::fault(failure).into()),
        _ => return Err(misuse("hello was answered by something else")),
    };
    let registration = shared
        .sessions
        .register(client, &tenant)
        .ok_or_else(|| Status::unavailable("the master is stopping"))?;
    tracing::debug!(%client, tenant, resumed, "session begins");
    let event = event::Event::Hello(shared.terms.hello(resumed));
    Ok((registration, Event { event: Some(event) }))
}

/// Applies one frame's operations in order, under one lock, and adds their answers. Those of a stream
/// that another one has replaced are not applied: the client has asked again, and goes by the
/// answers that it got there.
fn perform(
    shared: &Arc<Shared>,
    registration: &Registration,
    acknowledged_below: u64,
    operations: Vec<mooncake_proto::master::Operation>,
    events: &mut Vec<Event>,
) {
    let client = registration.client;
    let commands: Vec<_> = operations
        .into_iter()
        .map(|operation| {
            let number = operation.number;
            let asked = request::operation(operation.operation, rand::random);
            let command = asked.map(|operation| Command::Perform {
                caller: Caller::Session { client, number },
                operation,
            });
            (number, command)
        })
        .collect();
    let acknowledge = (acknowledged_below > 0).then_some(Command::AcknowledgeBelow {
        client,
        number: acknowledged_below,
    });
    let answers = shared.apply_of(
        registration,
        acknowledge.iter().chain(
            commands
                .iter()
                .filter_map(|(_, command)| command.as_ref().ok()),
        ),
    );
    let Some(answers) = answers else {
        return;
    };
    let mut answers = answers.into_iter().skip(usize::from(acknowledge.is_some()));
    for (number, command) in commands {
        let answer = match command {
            Ok(Command::Perform { operation, .. }) => match answers.next() {
                // Comes on its own when it is there.
                Some((state::Answer::Later { .. }, _)) => continue,
                Some((answer, 0)) => shared.reply(&operation, answer),
                Some((answer, after)) => {
                    // Likewise, when what it says is durable.
                    shared.when_durable_then(after, answer, move |shared, answer| {
                        let answer = Some(shared.reply(&operation, answer));
                        shared.sessions.answer(client, Answer { number, answer });
                    });
                    continue;
                }
                None => unreachable!("each command has its answer"),
            },
            Ok(_) => unreachable!("operations become commands that perform them"),
            Err(failure) => answer::refusal(failure),
        };
        let answer = Answer {
            number,
            answer: Some(answer),
        };
        events.push(Event {
            event: Some(event::Event::Answer(answer)),
        });
    }
}
