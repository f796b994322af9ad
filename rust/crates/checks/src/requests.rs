//! Requests of the three protocols.

use recipe::encoding::{render, PromptFormat, RenderOptions};
use recipe::json::{parse_bytes, Value};
use recipe::protocol::{
    ChatCompletionRequest, ConversationRequest, ConversionOptions, MessagesRequest, RequestError,
    ResponsesRequest, ShapeError,
};

/// A Chat Completions body is converted and rendered, or refused with a message.
pub fn check_chat_request(body: &[u8]) {
    check(
        body,
        ChatCompletionRequest::from_value,
        |request, options| request.convert(options),
    );
}

/// A Responses body is converted and rendered, or refused with a message.
pub fn check_responses_request(body: &[u8]) {
    check(body, ResponsesRequest::from_value, |request, options| {
        request.convert(options, None)
    });
}

/// A Messages body is converted and rendered, or refused with a message.
pub fn check_messages_request(body: &[u8]) {
    check(body, MessagesRequest::from_value, |request, options| {
        request.convert(options)
    });
}

fn check<R>(
    body: &[u8],
    read: impl Fn(Value<'_>) -> Result<R, ShapeError>,
    convert: impl Fn(R, &ConversionOptions) -> Result<ConversationRequest, RequestError>,
) {
    for options in [ConversionOptions::default(), ConversionOptions::official()] {
        let Ok(value) = parse_bytes(body) else { return };
        let request = match read(value) {
            Ok(request) => request,
            Err(error) => return assert!(!error.detail.is_empty()),
        };
        match convert(request, &options) {
            Ok(converted) => check_prompts(&converted),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// Special ranges are in order, on character boundaries, and spell special tokens.
fn check_prompts(request: &ConversationRequest) {
    let tokens = recipe::model::SpecialTokens::default();
    for format in [PromptFormat::V4, PromptFormat::V41] {
        let options = RenderOptions::default();
        let Ok(rendered) = render(&request.conversation, format, &tokens, &options) else {
            panic!("a converted conversation cannot be rendered");
        };
        let mut end = 0;
        for range in &rendered.special_ranges {
            assert!(range.start >= end && range.end > range.start);
            end = range.end;
        }
    }
}
