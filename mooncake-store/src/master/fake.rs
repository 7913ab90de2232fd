//! A master in the same process that behaves badly on demand.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mooncake_proto::master::{
    self, Answer, ClientFrame, Event, ExistResponse, Fenced, HelloAnswer, Invalidate,
    MountSegmentResponse, PingResponse, PutEndResponse, ServerFrame, event,
    master_server::{Master, MasterServer},
    operation,
};
use parking_lot::Mutex;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_stream::{
    StreamExt,
    wrappers::{TcpListenerStream, UnboundedReceiverStream},
};
use tonic::{Request, Response, Status, Streaming, async_trait};

use crate::core::MasterAnswer;

/// How the fake master answers hello and operations of each stream, in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    /// Answers everything, in order.
    Kind,
    /// Answers hello and then nothing at all.
    Mute,
    /// Takes this many operations and answers none; then cuts the stream.
    CutAfter(usize),
    /// Ends the session after hello.
    Fences,
    /// Answers this many operations, sends more events than a subscriber may leave behind, and cuts
    /// the stream.
    Floods(usize),
    /// Answers pings with "who are you".
    Forgetful,
    /// Collects this many operations and answers them last first.
    Reversed(usize),
    /// Answers nothing, and wants pings only once in a minute.
    Silent,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Numbers in the order of their arrival, pings left out, per stream.
    pub(crate) numbers: Vec<Vec<u64>>,
    pub(crate) acknowledged_below: u64,
    pub(crate) most_in_frame: usize,
    /// Streams and generations in which a segment was mounted.
    pub(crate) mounts: Vec<(usize, u32)>,
    /// Streams that the client ended.
    pub(crate) ended: usize,
}

type Outgoing = mpsc::UnboundedSender<Result<ServerFrame, Status>>;

#[derive(Clone)]
pub(crate) struct Fake {
    /// Of each stream: how it behaves, and whether hello is answered with `resumed`.
    script: Arc<Vec<(Mood, bool)>>,
    pub(crate) streams: Arc<AtomicU64>,
    pub(crate) seen: Arc<Mutex<Seen>>,
    changed: watch::Sender<u64>,
}

impl Fake {
    pub(crate) async fn serve(script: &[(Mood, bool)]) -> (Self, String) {
        let fake = Self {
            script: Arc::new(script.to_vec()),
            streams: Arc::default(),
            seen: Arc::default(),
            changed: watch::Sender::new(0),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let service = MasterServer::new(fake.clone());
        let server = tonic::transport::Server::builder()
            .serve_with_incoming(service, TcpListenerStream::new(listener));
        tokio::spawn(server);
        (fake, address.to_string())
    }

    pub(crate) async fn until(&self, mut holds: impl FnMut(&Seen) -> bool) {
        let mut changes = self.changed.subscribe();
        let wait = async {
            while !holds(&self.seen.lock()) {
                changes.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(20), wait)
            .await
            .expect("it comes to pass");
    }

    async fn stream(self, index: usize, mut frames: Streaming<ClientFrame>, out: Outgoing) {
        let (mood, resumed) = self.script[index.min(self.script.len() - 1)];
        let hello = frames.next().await.unwrap().unwrap();
        assert!(hello.hello.is_some() && hello.operations.is_empty());
        let hello_answer = HelloAnswer {
            epoch: index as u64 + 1,
            resumed,
            ping_interval_us: if mood == Mood::Silent {
                60_000_000
            } else {
                50_000
            },
            client_ttl_us: 10_000_000,
            put_deadline_us: 30_000_000,
        };
        send(&out, vec![event::Event::Hello(hello_answer)]);
        if mood == Mood::Fences {
            let reason = "expired".to_owned();
            send(&out, vec![event::Event::Fenced(Fenced { reason })]);
        }
        let (mut taken, mut held) = (0, Vec::new());
        if mood == Mood::Floods(0) {
            return flood(&out);
        }
        while let Some(Ok(frame)) = frames.next().await {
            let mut answers = Vec::new();
            {
                let mut seen = self.seen.lock();
                assert!(frame.acknowledged_below >= seen.acknowledged_below);
                seen.acknowledged_below = frame.acknowledged_below;
                seen.most_in_frame = seen.most_in_frame.max(frame.operations.len());
                for operation in frame.operations {
                    if let Some(operation::Operation::MountSegment(mount)) = &operation.operation {
                        let segment = mount.segment.as_ref().unwrap();
                        seen.mounts.push((index, segment.generation));
                    }
                    let (number, ping, answer) = answer(operation);
                    if ping {
                        if mood == Mood::Forgetful {
                            let unknown = PingResponse {
                                unknown_client: true,
                                ..PingResponse::default()
                            };
                            let answer = Some(MasterAnswer::Ping(unknown));
                            answers.push(event::Event::Answer(Answer { number, answer }));
                        } else if mood != Mood::Mute {
                            answers.push(answer);
                        }
                        continue;
                    }
                    seen.numbers[index].push(number);
                    taken += 1;
                    match mood {
                        Mood::Mute | Mood::Silent | Mood::CutAfter(_) => {}
                        Mood::Reversed(_) => held.push(answer),
                        Mood::Kind | Mood::Fences | Mood::Floods(_) | Mood::Forgetful => {
                            answers.push(answer);
                        }
                    }
                }
            }
            self.changed.send_modify(|changes| *changes += 1);
            if matches!(mood, Mood::Reversed(wanted) if held.len() >= wanted) {
                answers.extend(held.drain(..).rev());
            }
            send(&out, answers);
            match mood {
                Mood::CutAfter(most) if taken >= most => return,
                Mood::Floods(most) if taken >= most => return flood(&out),
                _ => {}
            }
        }
        self.seen.lock().ended += 1;
        self.changed.send_modify(|changes| *changes += 1);
    }
}

fn send(out: &Outgoing, events: Vec<event::Event>) {
    if !events.is_empty() {
        let wrap = |event| Event { event: Some(event) };
        let events = events.into_iter().map(wrap).collect();
        drop(out.send(Ok(ServerFrame { events })));
    }
}

fn flood(out: &Outgoing) {
    let void = event::Event::Invalidate(Invalidate::default());
    send(out, vec![void; 2_000]);
}

fn answer(operation: master::Operation) -> (u64, bool, event::Event) {
    let number = operation.number;
    let answer = match operation.operation.unwrap() {
        operation::Operation::Exist(_) => MasterAnswer::Exist(ExistResponse::default()),
        operation::Operation::MountSegment(_) => {
            MasterAnswer::MountSegment(MountSegmentResponse::default())
        }
        operation::Operation::PutEnd(_) => MasterAnswer::PutEnd(PutEndResponse::default()),
        operation::Operation::Ping(_) => MasterAnswer::Ping(PingResponse::default()),
        other => panic!("no test sends {other:?}"),
    };
    let ping = matches!(answer, MasterAnswer::Ping(_));
    let answer = Answer {
        number,
        answer: Some(answer),
    };
    (number, ping, event::Event::Answer(answer))
}

macro_rules! unary {
    ($($name:ident: $request:ident -> $response:ident),* $(,)?) => {
        #[async_trait]
        impl Master for Fake {
            type SessionStream = UnboundedReceiverStream<Result<ServerFrame, Status>>;

            async fn session(
                &self,
                request: Request<Streaming<ClientFrame>>,
            ) -> Result<Response<Self::SessionStream>, Status> {
                let (out, events) = mpsc::unbounded_channel();
                let index = self.streams.fetch_add(1, Ordering::Relaxed) as usize;
                self.seen.lock().numbers.push(Vec::new());
                tokio::spawn(self.clone().stream(index, request.into_inner(), out));
                Ok(Response::new(UnboundedReceiverStream::new(events)))
            }

            $(async fn $name(
                &self,
                _: Request<master::$request>,
            ) -> Result<Response<master::$response>, Status> {
                Err(Status::unimplemented("the session does it"))
            })*
        }
    };
}

unary! {
    put_start: PutStartRequest -> PutStartResponse,
    put_end: PutEndRequest -> PutEndResponse,
    put_revoke: PutRevokeRequest -> PutRevokeResponse,
    grant: GrantRequest -> GrantResponse,
    put: PutRequest -> PutResponse,
    return_grants: ReturnGrantsRequest -> ReturnGrantsResponse,
    lookup: LookupRequest -> LookupResponse,
    release: ReleaseRequest -> ReleaseResponse,
    exist: ExistRequest -> ExistResponse,
    remove: RemoveRequest -> RemoveResponse,
    remove_all: RemoveAllRequest -> RemoveAllResponse,
    describe: DescribeRequest -> DescribeResponse,
    list_objects: ListObjectsRequest -> ListObjectsResponse,
    list_segments: ListSegmentsRequest -> ListSegmentsResponse,
    mount_segment: MountSegmentRequest -> MountSegmentResponse,
    unmount_segment: UnmountSegmentRequest -> UnmountSegmentResponse,
    ping: PingRequest -> PingResponse,
    goodbye: GoodbyeRequest -> GoodbyeResponse,
}
