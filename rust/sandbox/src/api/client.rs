// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A small client for the control interface, for the command line and benches.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A request that got no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers.
    #[error("cannot reach a sandbox at {path:?}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the sandbox at {path:?} hung up: {source}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// The sandbox refused, and said why.
    #[error("{message} (HTTP status {status})")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        message: String,
    },
}

/// Talks to one sandbox.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// A client for the sandbox behind this socket.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// `GET /api/v1/<name>`.
    pub fn get(&self, name: &str) -> Result<String, ClientError> {
        self.request("GET", name, "")
    }

    /// `PUT /api/v1/<name>`, with a JSON body unless it is empty.
    pub fn put(&self, name: &str, body: &str) -> Result<String, ClientError> {
        self.request("PUT", name, body)
    }

    fn request(&self, verb: &str, name: &str, body: &str) -> Result<String, ClientError> {
        let stream = UnixStream::connect(&self.path).map_err(|source| ClientError::Connect {
            path: self.path.clone(),
            source,
        })?;
        let (status, text) =
            exchange(stream, verb, name, body).map_err(|source| ClientError::Io {
                path: self.path.clone(),
                source,
            })?;
        if (200..300).contains(&status) {
            return Ok(text);
        }
        let causes: Vec<String> = serde_json::from_str(&text).unwrap_or_else(|_| vec![text]);
        Err(ClientError::Refused {
            status,
            message: causes.join(": "),
        })
    }
}

fn exchange(
    mut stream: UnixStream,
    verb: &str,
    name: &str,
    body: &str,
) -> io::Result<(u16, String)> {
    let request = format!(
        "{verb} /api/v1/{name} HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or(io::ErrorKind::InvalidData)?;
    // The server closes after its answer, so its length need not be looked for.
    let mut rest = String::new();
    reader.read_to_string(&mut rest)?;
    let text = rest.split_once("\r\n\r\n").map_or("", |(_, text)| text);
    Ok((status, text.to_owned()))
}
