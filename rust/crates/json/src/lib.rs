//! JSON for prompts and protocol bodies.
//!
//! Three needs of this library are not met by a general JSON crate at once: the order of object members is
//! kept, strings are borrowed from the input where they can be, and numbers print in two fixed styles that end
//! up in prompts (see [`FloatStyle`]).
//!
//! * [`parse`] reads text into a [`Value`]; duplicate keys keep the first position and the last value.
//! * [`Value::to_compact`] and [`Value::write_spaced`] write it back.
//! * [`escape_into`] is the string escaping that every writer here uses.
//! * [`Validator`] checks JSON text piece by piece, for values that arrive in a stream.

mod number;
mod parse;
mod validate;
mod value;
mod write;

pub use number::{write_f64, FloatStyle, Number};
pub use parse::{parse, parse_bytes, ParseError, MAX_DEPTH};
pub use validate::{Validator, ValidatorError};
pub use value::{Object, Value};
pub use write::{escape_into, write_compact, write_spaced, write_string};
