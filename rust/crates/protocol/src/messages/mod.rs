//! Messages: request bodies and their conversion.

mod blocks;
mod catalog;
mod convert;
mod pending;
mod request;

pub use request::MessagesRequest;
