//! Texts that the models were trained with; exact data, not to be reworded.
//!
//! Source: prompts of the wheel `deepseek-recipe` 0.2.0.

/// V4, effort `high`, `xhigh` and unset.
pub(crate) const V4_EFFORT_HIGH: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, \
rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, \
and rejected hypothesis to ensure absolutely no assumption is left unchecked.

";

/// V4, effort `max`.
pub(crate) const V4_EFFORT_MAX: &str = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the \
problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause \
rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no \
assumption remains unchecked and no error remains undiscovered.

";

/// V4.1, before and after the number.
pub(crate) const V41_EFFORT: (&str, &str) = (
    "Reasoning Effort: ",
    " (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
);

pub(crate) const TOOLS_INTRO: &str =
    "\n\n## Tools\n\nYou have access to a set of tools to help answer the user's \
question. You can invoke tools by writing a \"";
pub(crate) const TOOLS_INTRO_END: &str = "\" block like the following:\n\n";
pub(crate) const STRING_RULE: &str = "\n\nString parameters should be specified as is and set `string=\"true\"`. \
For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\n";
pub(crate) const THINKING_RULE: (&str, &str, &str, &str) = (
    "If thinking_mode is enabled (triggered by ",
    "), you MUST output your complete reasoning inside ",
    " BEFORE any tool calls or final response.\n\nOtherwise, output directly after ",
    " with tool calls or final response.\n\n### Available Tool Schemas\n\n",
);
pub(crate) const TOOLS_CLOSING: &str =
    "You MUST strictly follow the above defined tool name and parameter \
schemas to invoke tool calls.\n";
pub(crate) const UPDATED_TOOLS: &str = "\n\n### Updated Tool Schemas\n\n";
pub(crate) const SCHEMA_FORMAT: &str =
    "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema \
to reply:\n";
pub(crate) const V4_JSON_OBJECT: &str =
    "\n\nYou are a helpful assistant designed to output JSON.\n\
## Response Format:\n\nReply with JSON object ONLY.";
pub(crate) const V41_JSON_OBJECT: &str = "{\"type\": \"json_object\"}";
