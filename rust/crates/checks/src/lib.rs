//! What must hold for any input of any parser.
//!
//! Every function takes bytes from a fuzzer or a property test and panics if a law is broken: the parsers never panic
//! themselves, two ways to the same result agree, and a malformed call never has arguments that could be executed.

mod json;
mod requests;
mod stream;

pub use json::check_json;
pub use requests::{check_chat_request, check_messages_request, check_responses_request};
pub use stream::{check_stream, Output};

/// Reads a tokenizer file and, if it is one, encodes and decodes with it.
pub fn check_tokenizer_file(text: &str) {
    if let Ok(tokenizer) = recipe::tokenizer::Tokenizer::from_json(text) {
        let ids = tokenizer.encode("The tide 潮 is 12.5 m high.\n");
        recipe::tokenizer::Decoder::decode(&tokenizer, &ids);
    }
}
