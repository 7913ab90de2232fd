//! Registration is all or nothing, and no life of a process repeats the names of another.
#![allow(clippy::unwrap_used, reason = "the helpers below are part of tests")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use mooncake_tent::{
    Error, LocalBuffer, Memory, PeerId, Permission, RegisterOptions, RegistrationId, Result,
    TentEngine, TransferEngine,
    transport::{
        Attachment, BoxFuture, Capabilities, InstallContext, LinkGauges, Peer, SubBatch, Transport,
    },
};

/// A link that takes memory, declines it or fails, and counts what it has.
#[derive(Clone, Debug)]
struct Link {
    name: &'static str,
    answer: Answer,
    held: Arc<AtomicI64>,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Takes,
    Declines,
    Fails,
}

impl Link {
    fn new(name: &'static str, answer: Answer) -> Self {
        let held = Arc::default();
        Self { name, answer, held }
    }

    fn held(&self) -> i64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl Transport for Link {
    fn name(&self) -> &'static str {
        self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::read_write()
    }

    fn install(&self, _engine: InstallContext) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn endpoint(&self) -> Option<String> {
        None
    }

    fn uninstall(&self, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn add_memory_buffer<'a>(
        &'a self,
        _buffer: &'a Arc<LocalBuffer>,
    ) -> BoxFuture<'a, Result<Attachment>> {
        Box::pin(async {
            match self.answer {
                Answer::Takes => {
                    self.held.fetch_add(1, Ordering::Relaxed);
                    Ok(Attachment::Attached)
                }
                Answer::Declines => Ok(Attachment::Declined("it is not for this link")),
                Answer::Fails => Err(Error::Invalid("its device is full".to_owned())),
            }
        })
    }

    fn remove_memory_buffer(&self, _id: RegistrationId) -> BoxFuture<'_, Result<()>> {
        self.held.fetch_sub(1, Ordering::Relaxed);
        Box::pin(async { Ok(()) })
    }

    fn allocate_sub_batch(&self, _capacity: usize) -> Result<Box<dyn SubBatch>> {
        Err(Error::Invalid("it carries nothing".to_owned()))
    }

    fn reaches(&self, _peer: &Peer) -> bool {
        false
    }

    fn warm_up<'a>(&'a self, _peer: &'a Arc<Peer>, _budget: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, _peer: PeerId, _budget: Duration) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn estimated_bandwidth(&self) -> Option<f64> {
        None
    }

    fn gauges(&self) -> LinkGauges {
        LinkGauges::default()
    }
}

async fn register(engine: &TentEngine) -> Result<mooncake_tent::Buffer> {
    let memory = Memory::allocate(4096).unwrap();
    let options = RegisterOptions::new(Permission::PeersReadWrite);
    engine.register_memory(memory, options).await
}

#[tokio::test]
async fn memory_that_no_link_takes_is_not_registered() {
    // In the place of the one that takes everything.
    let nobody = Link::new("in-process", Answer::Declines);
    let engine = TentEngine::builder().transport(nobody).build().await;
    let engine = engine.unwrap();
    match register(&engine).await {
        Err(Error::NoLink { reasons }) => assert!(reasons.contains("not for this link")),
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.gauges().registrations, 0);
}

#[tokio::test]
async fn memory_that_one_link_fails_to_take_is_taken_back_from_the_others() {
    let first = Link::new("first", Answer::Takes);
    let declining = Link::new("declining", Answer::Declines);
    let failing = Link::new("failing", Answer::Fails);
    let builder = TentEngine::builder()
        .transport(first.clone())
        .transport(declining.clone())
        .transport(failing.clone());
    let engine = builder.build().await.unwrap();
    let error = register(&engine).await.unwrap_err();
    assert!(error.to_string().contains("its device is full"), "{error}");
    assert_eq!((first.held(), declining.held(), failing.held()), (0, 0, 0));
    assert_eq!(engine.gauges().registrations, 0);
    let own = engine.open_segment("", Duration::from_secs(1)).await;
    assert_eq!(own.unwrap().descriptor().buffer_count(), 0);
}

#[tokio::test]
async fn no_life_repeats_the_names_of_another() {
    let mut names = Vec::new();
    for _ in 0..4 {
        let engine = TentEngine::builder().build().await.unwrap();
        for _ in 0..3 {
            names.push(register(&engine).await.unwrap().id());
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 12);
}
