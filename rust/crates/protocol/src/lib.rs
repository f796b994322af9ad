//! Three protocols in and out.
//!
//! A request body becomes a [`ConversationRequest`]; a [`StreamProcessor`] around one of the chunk generators turns
//! model output into that protocol's events; an accumulator folds events into the response object.
//!
//! Field names and error texts: the public API references of the three protocols, and the behaviour of
//! `deepseek-recipe` 0.2.0, which [`Compat::Official`] reproduces case by case.

mod chat;
mod common;
mod error;
mod events;
mod images;
mod messages;
mod options;
mod processor;
mod repeats;
mod request;
mod responses;
mod schema;
mod seal;
mod shape;

pub use chat::ChatCompletionRequest;
pub use error::{ConversionError, RequestError, ShapeError};
pub use events::{
    ChatCompletionChunk, ChatCompletionChunkGenerator, ChatCompletionResponse, ChunkGenerator,
    FinishReason, MessagesChunkGenerator, MessagesResponse, MessagesStreamEvent,
    ResponsesChunkGenerator, ResponsesResponse, ResponsesStreamEvent, Usage,
};
pub use messages::MessagesRequest;
pub use options::{
    Compat, ConversionOptions, Extras, ModelVersion, ReasoningContentBehavior, RequestLimits,
    WebSearchBehavior,
};
pub use processor::{Chunk, InferenceFinishReason, PromptUsage, StreamError, StreamProcessor};
pub use request::{ConversationRequest, Generation, InferenceOptions, OutputConstraint, Warning};
pub use responses::{ResponseStore, ResponsesEcho, ResponsesRequest, ResponsesState, StoreError};
pub use seal::ReasoningKey;
