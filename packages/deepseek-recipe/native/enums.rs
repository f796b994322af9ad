//! Enum-like classes.

use pyo3::prelude::*;
use recipe::model;
use recipe::protocol;
use recipe::stream;

macro_rules! mirror {
    ($(#[$meta:meta])* $name:ident = $original:path { $($member:ident),* $(,)? }) => {
        $(#[$meta])*
        #[pyclass(eq, hash, frozen, from_py_object, module = "deepseek_recipe._recipe")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($member),* }

        impl From<$name> for $original {
            fn from(value: $name) -> Self {
                match value { $($name::$member => <$original>::$member),* }
            }
        }

        impl From<$original> for $name {
            fn from(value: $original) -> Self {
                match value { $(<$original>::$member => $name::$member),* }
            }
        }
    };
}

mirror! {
    /// A token with a meaning of its own in prompts and output.
    SpecialToken = model::SpecialToken {
        Bos, Eos, ThinkingStart, ThinkingEnd, System, User, Assistant, LatestReminder, Dsml, Image, Ref, RefEnd, Box,
        BoxEnd, Point, PointEnd, Polygon, PolygonEnd,
    }
}

mirror! {
    /// What to do with web-search tools and blocks.
    WebSearchBehavior = protocol::WebSearchBehavior { Drop, Reject }
}

mirror! {
    /// What to do about reasoning that was not sent back.
    ReasoningContentBehavior = protocol::ReasoningContentBehavior { FillEmpty, Reject }
}

mirror! {
    /// The model a prompt is for.
    ModelVersion = protocol::ModelVersion { DeepseekV4Pro, DeepseekV41Flash }
}

mirror! {
    /// Why the engine stopped.
    InferenceFinishReason = protocol::InferenceFinishReason { Stop, Length, ContentFilter }
}

mirror! {
    /// What the first byte of output continues.
    ThinkingInitialStage = stream::ThinkingInitialStage { ReasoningStart, ReasoningContinuation, ContentContinuation }
}

#[pymethods]
impl SpecialToken {
    /// The default spelling.
    fn default_str(&self) -> &'static str {
        model::SpecialToken::from(*self).default_str()
    }
}

#[pymethods]
impl ThinkingInitialStage {
    /// Whether the first byte is reasoning.
    fn starts_in_reasoning(&self) -> bool {
        stream::ThinkingInitialStage::from(*self).starts_in_reasoning()
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SpecialToken>()?;
    module.add_class::<WebSearchBehavior>()?;
    module.add_class::<ReasoningContentBehavior>()?;
    module.add_class::<ModelVersion>()?;
    module.add_class::<InferenceFinishReason>()?;
    module.add_class::<ThinkingInitialStage>()
}
