// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The control interface: HTTP/1.1 on a Unix socket, with Cloud Hypervisor's
//! paths and bodies for what is supported.

mod client;
mod error;
mod http;
mod model;
mod operations;
mod service;

pub use client::{Client, ClientError};
pub use error::ApiError;
pub use http::{bind, serve, ServeError};
pub use model::{
    CountersReply, InfoReply, MemoryInfo, PauseReply, PauseRequest, RestoreRequest,
    SnapshotRequest, VmStatus,
};
pub use service::{Options, Service};
