//! Messages: request bodies and their conversion.

mod blocks;
mod convert;
mod request;

pub use request::MessagesRequest;
