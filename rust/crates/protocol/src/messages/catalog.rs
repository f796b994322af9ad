//! Declared tools, for messages that refer to them.

use std::collections::HashMap;

use recipe_model::ToolDefinition;

use crate::common::{DeclaredTool, Rule};
use crate::options::ConversionOptions;
use crate::repeats::Repeats;

/// Tools by name.
pub(super) struct Catalog<'a> {
    tools: HashMap<&'a str, (&'a DeclaredTool, Option<usize>)>,
    repeats: Repeats,
    options: &'a ConversionOptions,
}

impl<'a> Catalog<'a> {
    /// Declared tools; of equal names, which are refused later, the first counts.
    pub fn of(declared: &'a [DeclaredTool], options: &'a ConversionOptions) -> Self {
        let mut tools = HashMap::with_capacity(declared.len());
        for tool in declared {
            tools.entry(tool.name.as_str()).or_insert((tool, None));
        }
        Catalog {
            tools,
            repeats: Repeats::default(),
            options,
        }
    }

    /// The tool of a reference, which the prompt shows once more; `None` if there is none of that name.
    ///
    /// # Errors
    /// The references of the request show more text than is allowed.
    pub fn refer(&mut self, name: &str) -> Rule<Option<ToolDefinition>> {
        let Some((tool, bytes)) = self.tools.get_mut(name) else {
            return Ok(None);
        };
        let bytes = *bytes.get_or_insert_with(|| size(tool));
        self.repeats.add(bytes, self.options)?;
        Ok(Some(tool.unchecked()))
    }
}

/// Bytes of a tool's definition.
fn size(tool: &DeclaredTool) -> usize {
    let schema = tool.parameters.as_ref();
    tool.name.len()
        + tool.description.as_ref().map_or(0, String::len)
        + schema.map_or(0, |schema| schema.to_compact().len())
}
