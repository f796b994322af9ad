//! The one custom tool: `apply_patch`, offered to the model as a function with a string parameter.
//!
//! The description is the one that the model was trained with; exact data of the wheel `deepseek-recipe` 0.2.0.

use std::sync::{Arc, OnceLock};

use recipe_json::{parse, Value};

use crate::common::{is_flash, DeclaredTool};
use crate::options::ModelVersion;

pub(crate) const NAME: &str = "apply_patch";
const DESCRIPTION: &str = include_str!("apply_patch.txt");
const PARAMETERS: &str = r#"{"type": "object", "additionalProperties": false, "properties": {"input": {"type": "string", "description": "The entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch envelope)."}}, "required": ["input"]}"#;

/// The tool as the model of `version` knows it.
pub(crate) fn definition(version: ModelVersion) -> DeclaredTool {
    static SCHEMA: OnceLock<Arc<Value<'static>>> = OnceLock::new();
    let parameters =
        SCHEMA.get_or_init(|| Arc::new(parse(PARAMETERS).map_or(Value::Null, Value::into_owned)));
    DeclaredTool {
        name: NAME.to_owned(),
        description: Some(if is_flash(version) {
            DESCRIPTION.to_owned()
        } else {
            // V4 was trained without the empty line in front of the envelope.
            DESCRIPTION.replacen("envelope:\n\n", "envelope:\n", 1)
        }),
        parameters: Some(parameters.clone()),
        strict: None,
        defer_loading: false,
        needs_parameters: false,
    }
}
