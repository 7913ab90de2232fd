//! Shows how failures look on the wire and to whoever receives them.

use std::time::Duration;

use mooncake_proto::{
    Applied, Fault, Retry,
    status::{ErrorCode, ErrorDetail},
};
use prost::Message;

fn main() {
    let later = Retry::Later(Duration::from_millis(20));
    let faults = [
        Fault::new(ErrorCode::ObjectNotFound, Retry::Never, "no such object")
            .with_key(&b"model/block-7"[..]),
        Fault::new(ErrorCode::NoSpace, later, "no segment has 1 MiB free"),
        Fault::new(
            ErrorCode::TransferFailed,
            Retry::Elsewhere,
            "the connection broke",
        )
        .with_peer("10.0.0.7:40001")
        .with_stage("move")
        .with_effect(Applied::Unknown, false),
    ];
    for fault in faults {
        let bytes = ErrorDetail::from(fault.clone()).encoded_len();
        let status = tonic::Status::from(fault);
        println!("{:?}, {bytes} bytes of detail", status.code());
        let fault = Fault::from(status);
        println!("    {fault}");
        println!(
            "    retry {:?}, applied {:?}, quiescent {}",
            fault.retry, fault.applied, fault.quiescent
        );
    }
}
