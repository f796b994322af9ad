//! Images over http and https, with the feature `images`.

use std::io::{Error, ErrorKind, Read, Result as IoResult};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pyo3::prelude::*;
use recipe::image::SourceError;

use super::source_error;
use crate::errors::image_error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: u32 = 5;

/// What kept a name from being resolved.
#[derive(Debug)]
enum Refused {
    Rejected(String),
    Raised(PyErr),
}

/// The bytes at a URL; `filter(host, address)` is asked about every address before it is connected to.
pub fn fetch(
    py: Python<'_>,
    url: &str,
    max_bytes: usize,
    filter: Option<Py<PyAny>>,
) -> PyResult<Vec<u8>> {
    if !["http://", "https://"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        let text = format!("invalid url: {url:?}; it starts with neither http:// nor https://");
        return Err(image_error(py, text, "InvalidUrl", false));
    }
    let refused = Arc::new(Mutex::new(None));
    let resolver = {
        let refused = Arc::clone(&refused);
        move |netloc: &str| resolve(netloc, filter.as_ref(), &refused)
    };
    let answer = py.detach(|| {
        let agent = ureq::AgentBuilder::new()
            .timeout_connect(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .redirects(MAX_REDIRECTS)
            .resolver(resolver)
            .build();
        read(&agent, url, max_bytes)
    });
    match refused.lock().ok().and_then(|mut refused| refused.take()) {
        Some(Refused::Raised(error)) => return Err(error),
        Some(Refused::Rejected(text)) => {
            return Err(image_error(py, text, "DestinationRejected", false))
        }
        None => {}
    }
    answer.map_err(|failure| failure.raised(py))
}

enum Failure {
    Status(u16),
    Url(String),
    Transport(String),
    Source(SourceError),
}

impl Failure {
    fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Status(status) => {
                let text = format!("the server answered with status {status}");
                image_error(py, text, "FetchStatus", status >= 500)
            }
            Failure::Url(text) => image_error(py, text, "InvalidUrl", false),
            Failure::Transport(text) => image_error(py, text, "Fetch", true),
            Failure::Source(error) => source_error(py, &error),
        }
    }
}

fn read(agent: &ureq::Agent, url: &str, max_bytes: usize) -> Result<Vec<u8>, Failure> {
    let response = agent.get(url).call().map_err(|error| match error {
        ureq::Error::Status(status, _) => Failure::Status(status),
        ureq::Error::Transport(error) if error.kind() == ureq::ErrorKind::InvalidUrl => {
            Failure::Url(error.to_string())
        }
        ureq::Error::Transport(error) => Failure::Transport(error.to_string()),
    })?;
    let mut bytes = Vec::new();
    // One byte more, so that a longer file is noticed.
    let limit = (max_bytes as u64).saturating_add(1);
    let mut body = response.into_reader().take(limit);
    body.read_to_end(&mut bytes)
        .map_err(|error| Failure::Transport(error.to_string()))?;
    if bytes.len() > max_bytes {
        return Err(Failure::Source(SourceError::ImageTooLarge {
            bytes: bytes.len(),
        }));
    }
    Ok(bytes)
}

fn resolve(
    netloc: &str,
    filter: Option<&Py<PyAny>>,
    refused: &Mutex<Option<Refused>>,
) -> IoResult<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = netloc.to_socket_addrs()?.collect();
    let Some(filter) = filter else {
        return Ok(addresses);
    };
    let host = netloc.rsplit_once(':').map_or(netloc, |(host, _)| host);
    for address in &addresses {
        let verdict = Python::attach(|py| {
            filter
                .call1(py, (host, address.ip().to_string()))
                .and_then(|answer| answer.bind(py).is_truthy())
        });
        let reason = match verdict {
            Ok(true) => continue,
            Ok(false) => {
                Refused::Rejected(format!("destination {host} ({}) is rejected", address.ip()))
            }
            Err(error) => Refused::Raised(error),
        };
        if let Ok(mut refused) = refused.lock() {
            *refused = Some(reason);
        }
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "destination is rejected",
        ));
    }
    Ok(addresses)
}
