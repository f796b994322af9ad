//! Token ids for text, and text for token ids.
//!
//! [`Tokenizer`] reads the `tokenizer.json` of a DeepSeek V4-series checkpoint (byte-level byte-pair encoding with
//! added tokens) and gives the same ids as the Hugging Face `tokenizers` library, which is the oracle of its tests.
//! [`Decoder`] turns ids that arrive in chunks back into text without ever splitting a character.

mod added;
mod bpe;
mod bytes;
mod classes;
mod decode;
mod file;
mod split;
mod table;
mod tokenizer;

pub use decode::{Decoder, TokenText};
pub use file::TokenizerError;
pub use tokenizer::{Encoder, Tokenizer};
