//! DeepSeek V4 and V4.1 behind the OpenAI and Anthropic protocols, from Rust.
//!
//! 1. Parse a body: [`json::parse_bytes`], then [`protocol::ChatCompletionRequest::from_value`] (or the Responses or
//!    Messages type).
//! 2. [`convert`](protocol::ChatCompletionRequest::convert) it to a [`protocol::ConversationRequest`].
//! 3. [`encoding::render`] the conversation; [`encoding::encode`] gives token ids.
//! 4. Feed what the model says to a [`protocol::StreamProcessor`] and send its events.
//!
//! ```
//! use recipe::encoding::{render, PromptFormat, RenderOptions};
//! use recipe::protocol::{
//!     ChatCompletionChunkGenerator, ChatCompletionRequest, Chunk, ConversionOptions, StreamProcessor,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let body = r#"{"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "Tide?"}]}"#;
//! let options = ConversionOptions::default();
//! let request = ChatCompletionRequest::from_value(recipe::json::parse(body)?)?.convert(&options)?;
//! let prompt =
//!     render(&request.conversation, PromptFormat::V41, &options.special_tokens, &RenderOptions::default())?;
//! assert!(prompt.prompt.ends_with("<｜User｜>Tide?<｜Assistant｜><think>"));
//!
//! let generator = ChatCompletionChunkGenerator::new(&request, "chatcmpl-1".into(), "flash".into());
//! let mut processor = StreamProcessor::new(generator, request.parsing_options.clone(), None);
//! let chunk = Chunk::Text { content: "Rising.</think>High at nine.".into(), token_count: 8 };
//! let events = processor.push(&chunk)?;
//! assert!(events[2].to_json().contains("High at nine."));
//! # Ok(())
//! # }
//! ```

pub use recipe_encoding as encoding;
pub use recipe_image as image;
pub use recipe_json as json;
pub use recipe_model as model;
pub use recipe_protocol as protocol;
pub use recipe_stream as stream;
pub use recipe_tokenizer as tokenizer;
