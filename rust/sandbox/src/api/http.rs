// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The HTTP side: paths, verbs, bodies, statuses.

use std::future::{Future, IntoFuture};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{to_bytes, Body};
use axum::extract::{Request, State};
use axum::http::{header, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::Router;
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use serde::Serialize;
use tokio::sync::{oneshot, Notify, RwLock};

use super::{ApiError, Service};
use crate::socket::BoundSocket;
use crate::vm::Release;

/// Larger bodies are refused.
const MAX_BODY: usize = 1 << 20;
/// How long the end waits for a reply to be read.
const LAST_REPLY: Duration = Duration::from_secs(1);
const PREFIX: &str = "/api/v1/";

/// Paths below `/api/v1/`.
pub(super) const PATHS: [&str; 11] = [
    "vmm.ping",
    "vmm.shutdown",
    "vm.create",
    "vm.boot",
    "vm.pause",
    "vm.resume",
    "vm.snapshot",
    "vm.restore",
    "vm.delete",
    "vm.info",
    "vm.counters",
];

/// The service could not be offered.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be used.
    #[error("API socket {path:?}: {source}{hint}", hint = hint(source))]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The host's answer.
        source: std::io::Error,
    },
    /// No event loop.
    #[error("cannot serve the API: {0}")]
    Serve(std::io::Error),
}

fn hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => " (another sandbox answers there)",
        std::io::ErrorKind::NotFound => " (the directory does not exist)",
        _ => "",
    }
}

/// Binds the control socket. Clients that connect are served once [`serve`] runs;
/// doing this first keeps a second process from touching what the first one has.
pub fn bind(path: &Path) -> Result<BoundSocket, ServeError> {
    BoundSocket::bind(path).map_err(|source| ServeError::Bind {
        path: path.to_owned(),
        source,
    })
}

/// Serves requests until `end` is over or `vmm.shutdown` is asked for.
///
/// Every operation runs to its end on a thread of its own, whether or not the
/// client is still there to hear of it. In the end those that have begun are waited
/// for, clients that have not finished asking are not.
pub fn serve<F>(socket: &BoundSocket, service: Arc<Service>, end: F) -> Result<(), ServeError>
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = socket.listener().try_clone().map_err(ServeError::Serve)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Serve)?;
    runtime.block_on(async move {
        let listener = tokio::net::UnixListener::from_std(listener).map_err(ServeError::Serve)?;
        let shared = Arc::new(Shared {
            service,
            stop: Notify::new(),
            operations: RwLock::new(()),
        });
        let app = Router::new().fallback(answer).with_state(shared.clone());
        let (close, closing) = oneshot::channel::<()>();
        let server = axum::serve(listener, app).with_graceful_shutdown(async move {
            let _ = closing.await;
        });
        let mut server = pin!(server.into_future());
        tokio::select! {
            result = &mut server => return result.map_err(ServeError::Serve),
            () = end => (),
            () = shared.stop.notified() => (),
        }
        drop(close);
        tokio::select! {
            result = server => result.map_err(ServeError::Serve),
            () = shared.last_reply() => Ok(()),
        }
    })
}

struct Shared {
    service: Arc<Service>,
    stop: Notify,
    /// Each operation reads it while it runs.
    operations: RwLock<()>,
}

impl Shared {
    /// Waits until no operation runs and the last one's reply has had its time.
    async fn last_reply(&self) {
        drop(self.operations.write().await);
        tokio::time::sleep(LAST_REPLY).await;
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    match carry_out(&shared, request).await {
        Ok(response) => response,
        Err(error) => refusal(&error),
    }
}

async fn carry_out(shared: &Shared, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let name = path.strip_prefix(PREFIX).unwrap_or_default();
    let Some(&name) = PATHS.iter().find(|known| **known == name) else {
        return Err(ApiError::Path(path.to_owned()));
    };
    let wanted = match name {
        "vmm.ping" | "vm.info" | "vm.counters" => Method::GET,
        _ => Method::PUT,
    };
    if parts.method != wanted {
        let verb = if wanted == Method::GET { "GET" } else { "PUT" };
        return Err(ApiError::Method(verb));
    }
    let body = read_body(body).await?;
    if name == "vmm.shutdown" {
        shared.stop.notify_one();
        return done(());
    }
    let _running = shared.operations.read().await;
    let service = shared.service.clone();
    tokio::task::spawn_blocking(move || dispatch(&service, name, &body))
        .await
        .map_err(|_| ApiError::Panicked)?
}

async fn read_body(body: Body) -> Result<Vec<u8>, ApiError> {
    to_bytes(body, MAX_BODY)
        .await
        .map(|bytes| bytes.to_vec())
        .map_err(|error| {
            let error = error.into_inner();
            if error.is::<LengthLimitError>() {
                return ApiError::TooLarge(MAX_BODY);
            }
            ApiError::Body(error.to_string())
        })
}

fn dispatch(service: &Service, name: &str, body: &[u8]) -> Result<Response, ApiError> {
    match name {
        "vmm.ping" => reply(&serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
        })),
        "vm.create" => done(service.create(parse(body)?)?),
        "vm.boot" => done(service.boot()?),
        "vm.resume" => done(service.resume()?),
        "vm.pause" if body.is_empty() => done(service.pause()?),
        "vm.pause" => reply(&service.pause_to(&parse(body)?)?),
        "vm.snapshot" => done(service.snapshot(&parse(body)?)?),
        "vm.restore" => reply(&service.restore(&parse(body)?)?),
        "vm.delete" => done(service.delete(release_of(body)?)?),
        "vm.info" => reply(&service.info()?),
        _ => reply(&service.counters()),
    }
}

/// Body of `vm.delete`, which may be missing.
fn release_of(body: &[u8]) -> Result<Release, ApiError> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct DeleteRequest {
        #[serde(default)]
        release: Release,
    }
    if body.is_empty() {
        return Ok(Release::default());
    }
    Ok(parse::<DeleteRequest>(body)?.release)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| ApiError::Body(error.to_string()))
}

fn done((): ()) -> Result<Response, ApiError> {
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn reply(value: &impl Serialize) -> Result<Response, ApiError> {
    let text = serde_json::to_string(value).map_err(|error| ApiError::Body(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

/// An error and its causes as Cloud Hypervisor writes them: a list of strings.
fn refusal(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::json!([error.to_string()]).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
