//! Each operation as a call of its own.

use mooncake_proto::{
    Fault,
    master::{
        self as proto, answer::Answer as Reply, master_server::Master,
        operation::Operation as Request,
    },
};
use tonic::{Response, Status, Streaming, async_trait};

use super::{MasterService, SessionStream, answer::refusal, request};
use crate::state::{Caller, ClientId, Command};

impl MasterService {
    async fn call(&self, client: u64, tenant: String, request: Request) -> Reply {
        let caller = Caller::Unary {
            client: ClientId(client),
            tenant,
        };
        let operation = match request::operation(Some(request), rand::random) {
            Ok(operation) => operation,
            Err(failure) => return refusal(failure),
        };
        let command = Command::Perform { caller, operation };
        let answer = self.shared.answer(&command).await;
        match &command {
            Command::Perform { operation, .. } => self.shared.reply(operation, answer),
            _ => unreachable!("it was built above"),
        }
    }
}

/// The answer of the kind that was asked for, or the error that came instead.
macro_rules! expect {
    ($reply:expr, $kind:ident) => {
        match $reply {
            Reply::$kind(response) => Ok(Response::new(response)),
            Reply::Error(detail) => Err(Fault::from(detail).into()),
            _ => Err(Status::internal(
                "the operation was answered by something else",
            )),
        }
    };
}

/// Calls that say whose objects they mean and, where it matters, who calls.
macro_rules! calls {
    ($($name:ident: $kind:ident($request:ident) -> $response:ident as $client:expr, $tenant:expr;)*) => {
        #[async_trait]
        impl Master for MasterService {
            type SessionStream = SessionStream;

            async fn session(
                &self,
                request: tonic::Request<Streaming<proto::ClientFrame>>,
            ) -> Result<Response<SessionStream>, Status> {
                let shared = self.shared.clone();
                Ok(Response::new(SessionStream::new(shared, request.into_inner())))
            }

            $(async fn $name(
                &self,
                request: tonic::Request<proto::$request>,
            ) -> Result<Response<proto::$response>, Status> {
                let request = request.into_inner();
                let client: fn(&proto::$request) -> u64 = $client;
                let tenant: fn(&proto::$request) -> &str = $tenant;
                let (client, tenant) = (client(&request), tenant(&request).to_owned());
                expect!(self.call(client, tenant, Request::$kind(request)).await, $kind)
            })*
        }
    };
}

calls! {
    put_start: PutStart(PutStartRequest) -> PutStartResponse as |r| r.client_incarnation, |r| &r.tenant;
    put_end: PutEnd(PutEndRequest) -> PutEndResponse as |r| r.client_incarnation, |r| &r.tenant;
    put_revoke: PutRevoke(PutRevokeRequest) -> PutRevokeResponse as |r| r.client_incarnation, |r| &r.tenant;
    grant: Grant(GrantRequest) -> GrantResponse as |r| r.client_incarnation, |_| "";
    put: Put(PutRequest) -> PutResponse as |r| r.client_incarnation, |r| &r.tenant;
    return_grants: ReturnGrants(ReturnGrantsRequest) -> ReturnGrantsResponse
        as |r| r.client_incarnation, |_| "";
    lookup: Lookup(LookupRequest) -> LookupResponse as |_| 0, |r| &r.tenant;
    release: Release(ReleaseRequest) -> ReleaseResponse as |_| 0, |_| "";
    exist: Exist(ExistRequest) -> ExistResponse as |_| 0, |r| &r.tenant;
    remove: Remove(RemoveRequest) -> RemoveResponse as |_| 0, |r| &r.tenant;
    remove_all: RemoveAll(RemoveAllRequest) -> RemoveAllResponse as |_| 0, |r| &r.tenant;
    describe: Describe(DescribeRequest) -> DescribeResponse as |_| 0, |r| &r.tenant;
    list_objects: ListObjects(ListObjectsRequest) -> ListObjectsResponse as |_| 0, |r| &r.tenant;
    list_segments: ListSegments(ListSegmentsRequest) -> ListSegmentsResponse as |_| 0, |_| "";
    mount_segment: MountSegment(MountSegmentRequest) -> MountSegmentResponse
        as |r| r.segment.as_ref().map_or(0, |s| s.owner_incarnation), |_| "";
    unmount_segment: UnmountSegment(UnmountSegmentRequest) -> UnmountSegmentResponse
        as |r| r.client_incarnation, |_| "";
    ping: Ping(PingRequest) -> PingResponse as |r| r.client_incarnation, |_| "";
    goodbye: Goodbye(GoodbyeRequest) -> GoodbyeResponse as |r| r.client_incarnation, |_| "";
}
