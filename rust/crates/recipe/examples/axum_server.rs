//! A front-end for Chat Completions with axum: `cargo run --example axum_server`, then
//! `curl localhost:8000/v1/chat/completions -d '{"model": "deepseek", "messages": [{"role": "user", "content": "Hi"}]}'`.
//!
//! `MockModel` stands where an engine would: it is given the prompt and yields pieces of output text.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{header, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::Router;
use futures_util::stream::{self, Stream, StreamExt};
use recipe::encoding::{render, PromptFormat, RenderOptions};
use recipe::protocol::{
    ChatCompletionChunk, ChatCompletionChunkGenerator, ChatCompletionRequest,
    ChatCompletionResponse, Chunk, ConversionOptions, InferenceFinishReason, ModelVersion,
    RequestError, StreamProcessor,
};

/// Answers every prompt with the same output, a few characters at a time.
struct MockModel {
    output: &'static str,
}

impl MockModel {
    fn generate(&self, _prompt: &str) -> impl Stream<Item = String> + Send + 'static {
        let characters: Vec<char> = self.output.chars().collect();
        let pieces: Vec<String> = characters
            .chunks(5)
            .map(|piece| piece.iter().collect())
            .collect();
        stream::iter(pieces)
    }
}

struct Server {
    model: MockModel,
    options: ConversionOptions,
}

fn refusal(error: &RequestError) -> Response {
    let (status, body) = match error {
        RequestError::Content(error) => (error.status_code, error.body()),
        RequestError::Shape(error) => (
            400,
            format!("{{\"error\":{{\"message\":{:?}}}}}", error.to_string()),
        ),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_REQUEST);
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn convert(
    body: &[u8],
    options: &ConversionOptions,
) -> Result<recipe::protocol::ConversationRequest, RequestError> {
    let value = match recipe::json::parse_bytes(body) {
        Ok(value) => value,
        Err(error) => {
            let detail = error.to_string();
            return Err(RequestError::Shape(recipe::protocol::ShapeError { detail }));
        }
    };
    ChatCompletionRequest::from_value(value)?.convert(options)
}

/// Events of one generation: what each piece of output gives, then the end.
fn events(
    pieces: impl Stream<Item = String> + Send + 'static,
    processor: StreamProcessor<ChatCompletionChunkGenerator>,
) -> impl Stream<Item = ChatCompletionChunk> + Send {
    let chunks = pieces
        .map(|content| Chunk::Text {
            content,
            token_count: 1,
        })
        .chain(stream::iter([Chunk::Finish(InferenceFinishReason::Stop)]));
    chunks
        .scan(processor, |processor, chunk| {
            // A stop sequence was found: the rest of the output is not wanted.
            let events = if processor.is_finished() {
                None
            } else {
                processor.push(&chunk).ok()
            };
            std::future::ready(events)
        })
        .flat_map(stream::iter)
}

async fn chat(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let request = match convert(&body, &server.options) {
        Ok(request) => request,
        Err(error) => return refusal(&error),
    };
    let tokens = &server.options.special_tokens;
    let prompt = match render(
        &request.conversation,
        PromptFormat::V41,
        tokens,
        &RenderOptions::default(),
    ) {
        Ok(rendered) => rendered.prompt,
        Err(error) => {
            return (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    };
    let generator =
        ChatCompletionChunkGenerator::new(&request, "chatcmpl-1".into(), "deepseek".into());
    let processor = StreamProcessor::new(generator, request.parsing_options.clone(), None);
    let events = events(server.model.generate(&prompt), processor);
    if request.stream {
        let data = events
            .map(|event| event.to_json())
            .chain(stream::iter(["[DONE]".to_owned()]));
        return Sse::new(
            data.map(|data| Ok::<_, std::convert::Infallible>(Event::default().data(data))),
        )
        .into_response();
    }
    let mut response = ChatCompletionResponse::new("chatcmpl-1".into(), "deepseek".into(), 0);
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        response.accumulate(event);
    }
    (
        [(header::CONTENT_TYPE, "application/json")],
        response.to_json(),
    )
        .into_response()
}

fn app() -> Router {
    let mut options = ConversionOptions::default();
    options
        .model_versions_by_name
        .push(("deepseek".into(), ModelVersion::DeepseekV41Flash));
    let model = MockModel {
        output: "The user greets.</think>Hello! 🌊",
    };
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .with_state(Arc::new(Server { model, options }))
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8000").await?;
    axum::serve(listener, app()).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::body::{to_bytes, Body};
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn reply(body: &str) -> (StatusCode, String) {
        let request = Request::post("/v1/chat/completions")
            .body(Body::from(body.to_owned()))
            .unwrap();
        let response = app().oneshot(request).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_whole_response() {
        let body = r#"{"model": "deepseek", "messages": [{"role": "user", "content": "Hi"}]}"#;
        let (status, text) = reply(body).await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains(r#""content":"Hello! 🌊""#), "{text}");
        assert!(
            text.contains(r#""reasoning_content":"The user greets.""#),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_stream() {
        let body = r#"{"model": "deepseek", "messages": [{"role": "user", "content": "Hi"}], "stream": true}"#;
        let (_, text) = reply(body).await;
        assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
        let joined: String = text
            .split("\"content\":\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        assert_eq!(joined, "Hello! 🌊");
    }

    #[tokio::test]
    async fn a_refusal() {
        let (status, text) = reply(r#"{"model": "deepseek", "messages": []}"#).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("\"error\""), "{text}");
        assert_eq!(reply("{").await.0, StatusCode::BAD_REQUEST);
    }
}
