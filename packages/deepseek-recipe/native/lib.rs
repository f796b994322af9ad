//! Python types around the `recipe` crates: they translate values and errors and nothing else.

mod body;
mod encoding;
mod enums;
mod errors;
mod images;
mod messages;
mod options;
mod requests;
mod sources;
mod stream;
mod tokenizer;

use pyo3::prelude::*;

/// Work on more bytes than this takes longer than ten microseconds, so that it is worth letting other threads run.
const DETACH_BYTES: usize = 8 << 10;

/// Runs `work` without the interpreter lock if it is about many bytes.
fn maybe_detached<T: Send>(py: Python<'_>, bytes: usize, work: impl FnOnce() -> T + Send) -> T {
    if bytes > DETACH_BYTES {
        py.detach(work)
    } else {
        work()
    }
}

#[pymodule]
fn _recipe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::register(module)?;
    enums::register(module)?;
    sources::register(module)?;
    messages::register(module)?;
    options::register(module)?;
    tokenizer::register(module)?;
    encoding::register(module)?;
    requests::register(module)?;
    stream::register(module)?;
    images::register(module)
}
