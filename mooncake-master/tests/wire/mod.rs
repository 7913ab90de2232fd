//! A master on free ports, and a session with it.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "help for tests, of which each uses its part"
)]

use mooncake_master::{Master, MasterConfig, RunningMaster};
use mooncake_proto::master::{
    Answer, ClientFrame, Event, Hello, HelloAnswer, MountSegmentRequest, Operation, Segment,
    ServerFrame, answer, event, master_client::MasterClient, operation,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

pub(crate) async fn master() -> RunningMaster {
    let config = MasterConfig {
        listen: "127.0.0.1:0".into(),
        admin_listen: "127.0.0.1:0".into(),
        ..MasterConfig::default()
    };
    Master::start(config).await.unwrap()
}

pub(crate) async fn client(master: &RunningMaster) -> MasterClient<Channel> {
    let address = format!("http://{}", master.address());
    let channel = Endpoint::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap();
    MasterClient::new(channel)
}

pub(crate) fn segment(owner: u64, length: u64) -> Segment {
    Segment {
        id: vec![owner as u8; 16].into(),
        name: format!("segment-{owner}"),
        owner_incarnation: owner,
        registration: 1,
        generation: 0,
        length,
        owner: String::new(),
    }
}

pub(crate) fn mount(owner: u64, length: u64) -> operation::Operation {
    operation::Operation::MountSegment(MountSegmentRequest {
        segment: Some(segment(owner, length)),
    })
}

pub(crate) struct Session {
    pub(crate) frames: mpsc::Sender<ClientFrame>,
    pub(crate) inbound: Streaming<ServerFrame>,
    pub(crate) hello: HelloAnswer,
}

impl Session {
    pub(crate) async fn open(client: &mut MasterClient<Channel>, incarnation: u64) -> Self {
        let (frames, outbound) = mpsc::channel(64);
        let hello = Hello {
            protocol: 1,
            client_incarnation: incarnation,
            name: "test".into(),
            ..Hello::default()
        };
        let first = ClientFrame {
            hello: Some(hello),
            ..ClientFrame::default()
        };
        frames.send(first).await.unwrap();
        let outbound = ReceiverStream::new(outbound);
        let mut inbound = client.session(outbound).await.unwrap().into_inner();
        let mut first = inbound.message().await.unwrap().unwrap().events;
        let Some(event::Event::Hello(hello)) = first.remove(0).event else {
            panic!("the first event answers hello");
        };
        Self {
            frames,
            inbound,
            hello,
        }
    }

    pub(crate) async fn send(&self, operations: Vec<(u64, operation::Operation)>) {
        let operation = |(number, operation)| Operation {
            number,
            operation: Some(operation),
        };
        let frame = ClientFrame {
            operations: operations.into_iter().map(operation).collect(),
            ..ClientFrame::default()
        };
        self.frames.send(frame).await.unwrap();
    }

    pub(crate) async fn events(&mut self) -> Result<Option<Vec<Event>>, Status> {
        Ok(self.inbound.message().await?.map(|frame| frame.events))
    }

    /// The next so many answers.
    pub(crate) async fn answers(&mut self, count: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        while answers.len() < count {
            for event in self.events().await.unwrap().expect("the stream is open") {
                if let Some(event::Event::Answer(answer)) = event.event {
                    answers.push(answer);
                }
            }
        }
        answers
    }

    pub(crate) async fn ask(
        &mut self,
        number: u64,
        operation: operation::Operation,
    ) -> answer::Answer {
        self.send(vec![(number, operation)]).await;
        let answer = self.answers(1).await.remove(0);
        assert_eq!(answer.number, number);
        answer.answer.unwrap()
    }
}
