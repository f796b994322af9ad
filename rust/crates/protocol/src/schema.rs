//! JSON Schemas of tools and responses.
//!
//! Validity is decided by the `jsonschema` crate, whose messages are part of the error texts. Compiling a schema
//! costs microseconds, and services see the same few tools over and over, so outcomes are remembered by content.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock, RwLock};

use recipe_json::{Number, Object, Value};

use crate::common::Rule;
use crate::error::{refuse, ConversionError};
use crate::options::ConversionOptions;

/// Remembered outcomes are dropped together when their schemas exceed this many bytes.
const CACHE_BYTES: usize = 8 << 20;

#[derive(Default)]
struct Cache {
    outcomes: HashMap<Box<str>, Option<Arc<str>>>,
    bytes: usize,
}

fn cache() -> &'static RwLock<Cache> {
    static CACHE: OnceLock<RwLock<Cache>> = OnceLock::new();
    CACHE.get_or_init(RwLock::default)
}

/// The first error of `schema`, if it is not a valid JSON Schema.
fn first_error(schema: &Value<'_>, options: &ConversionOptions) -> Rule<Option<Arc<str>>> {
    let text = schema.to_compact();
    let limit = options.limits.max_schema_bytes;
    if !options.is_official() && text.len() > limit {
        return refuse(format!(
            "JSON Schema too large: {} bytes, the limit is {limit}",
            text.len()
        ));
    }
    let lock = cache();
    if let Ok(cache) = lock.read() {
        if let Some(outcome) = cache.outcomes.get(text.as_str()) {
            return Ok(outcome.clone());
        }
    }
    let outcome = jsonschema::validator_for(&to_serde(schema))
        .err()
        .map(|error| Arc::from(error.to_string()));
    if let Ok(mut cache) = lock.write() {
        cache.bytes += text.len();
        if cache.bytes > CACHE_BYTES {
            cache.outcomes.clear();
            cache.bytes = text.len();
        }
        cache.outcomes.insert(text.into(), outcome.clone());
    }
    Ok(outcome)
}

fn to_serde(value: &Value<'_>) -> serde_json::Value {
    match value {
        Value::Null => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Number(Number::Unsigned(value)) => (*value).into(),
        Value::Number(Number::Signed(value)) => (*value).into(),
        Value::Number(Number::Float(value)) => (*value).into(),
        Value::String(text) => text.as_ref().into(),
        Value::Array(items) => items.iter().map(to_serde).collect(),
        Value::Object(object) => serde_json::Value::Object(
            object
                .iter()
                .map(|(key, item)| (key.to_owned(), to_serde(item)))
                .collect(),
        ),
    }
}

/// Checks the parameters of the tool `name`.
pub(crate) fn check_parameters(
    name: &str,
    parameters: &Value<'_>,
    options: &ConversionOptions,
) -> Rule<()> {
    if let Some(error) = first_error(parameters, options)? {
        return refuse(format!("Invalid schema for function '{name}': {error}"));
    }
    match parameters.get("type") {
        Some(Value::String(kind)) if kind == "object" => Ok(()),
        kind => {
            // A strict tool without a type is refused by normalisation, with its own text.
            let kind = kind.map_or_else(|| "null".to_owned(), Value::to_compact);
            refuse(format!(
                "Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got \
                 'type: {kind}'."
            ))
        }
    }
}

/// Checks the schema of a response format.
pub(crate) fn check_response_schema(schema: &Value<'_>, options: &ConversionOptions) -> Rule<()> {
    match first_error(schema, options)? {
        Some(error) => refuse(format!("Invalid json schema: {error}")),
        None => Ok(()),
    }
}

pub(crate) fn empty_parameters() -> Arc<Value<'static>> {
    static EMPTY: OnceLock<Arc<Value<'static>>> = OnceLock::new();
    EMPTY
        .get_or_init(|| Arc::new(Value::Object(Object::new())))
        .clone()
}

/// The normalised form of `{"type": "object"}`.
pub(crate) fn empty_strict_parameters() -> Arc<Value<'static>> {
    let mut object = Object::new();
    object.insert("type", Value::string("object"));
    object.insert("properties", Value::Object(Object::new()));
    object.insert("additionalProperties", Value::Bool(false));
    object.insert("required", Value::Array(Vec::new()));
    Arc::new(Value::Object(object))
}

/// Normalises the parameters of a strict tool.
pub(crate) fn normalize_parameters(
    schema: &Value<'_>,
    options: &ConversionOptions,
) -> Rule<Value<'static>> {
    let not_object = "The top level of the function parameters schema must be an object.";
    normalize(
        schema,
        "Invalid tool parameters schema : ",
        true,
        not_object,
        options,
    )
}

/// Normalises the schema of a strict response format.
pub(crate) fn normalize_response_schema(
    schema: &Value<'_>,
    options: &ConversionOptions,
) -> Rule<Value<'static>> {
    let not_object = "The top level of the json schema must be an object.";
    normalize(schema, "Invalid json schema: ", false, not_object, options)
}

/// The shape of the whole schema is checked before its rules.
fn normalize(
    schema: &Value<'_>,
    what: &'static str,
    allow_empty: bool,
    not_object: &str,
    options: &ConversionOptions,
) -> Rule<Value<'static>> {
    let official = options.is_official();
    Normalizer {
        official,
        what,
        checks_rules: false,
    }
    .node(schema)?;
    Normalizer {
        official,
        what,
        checks_rules: true,
    }
    .top(schema, allow_empty, not_object)
}

/// Rewrites strict schemas in a fixed member order and refuses what a grammar cannot enforce.
struct Normalizer {
    /// Lose definitions, lengths and counts, as the original does.
    official: bool,
    /// Beginning of error texts.
    what: &'static str,
    /// Otherwise only shapes are checked.
    checks_rules: bool,
}

const FORMATS: [&str; 5] = ["email", "hostname", "ipv4", "ipv6", "uuid"];
const KINDS: [&str; 7] = [
    "object", "string", "number", "integer", "boolean", "array", "null",
];
const SCALARS: [&str; 5] = ["string", "number", "integer", "boolean", "null"];

fn variants(words: &[&str]) -> String {
    words
        .iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Normalizer {
    fn malformed<T>(&self, detail: impl std::fmt::Display) -> Rule<T> {
        refuse(format!("{}{detail}", self.what))
    }

    /// A wrong type in the words of the original's deserialiser.
    fn wrong_type<T>(&self, value: &Value<'_>, expected: &str) -> Rule<T> {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => format!("boolean `{value}`"),
            Value::Number(Number::Float(_)) => format!("floating point `{}`", value.to_compact()),
            Value::Number(_) => format!("integer `{}`", value.to_compact()),
            Value::String(_) => format!("string {}", value.to_compact()),
            Value::Array(_) => "sequence".to_owned(),
            Value::Object(_) => "map".to_owned(),
        };
        self.malformed(format!("invalid type: {found}, expected {expected}"))
    }

    fn top(&self, schema: &Value<'_>, allow_empty: bool, not_object: &str) -> Rule<Value<'static>> {
        let normalized = match schema.get("type") {
            Some(Value::String(kind)) if kind == "object" => match schema.as_object() {
                Some(object) => self.object(object, allow_empty)?,
                None => Value::Null,
            },
            _ => return refuse(not_object),
        };
        if self.official {
            return Ok(normalized);
        }
        self.with_definitions(schema, normalized)
    }

    /// Carries `$defs` and `definitions` over, so that references keep their targets.
    fn with_definitions(
        &self,
        schema: &Value<'_>,
        normalized: Value<'static>,
    ) -> Rule<Value<'static>> {
        let Value::Object(mut result) = normalized else {
            return Ok(normalized);
        };
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = schema.get(key).and_then(Value::as_object) {
                result.insert(key, Value::Object(self.nodes(definitions)?));
            }
        }
        Ok(Value::Object(result))
    }

    /// Members that are nodes, under their names.
    fn nodes(&self, members: &Object<'_>) -> Rule<Object<'static>> {
        let mut entries = Vec::with_capacity(members.len());
        for (name, member) in members.iter() {
            entries.push((Cow::Owned(name.to_owned()), self.node(member)?));
        }
        Ok(Object::from_unique(entries))
    }

    fn node(&self, schema: &Value<'_>) -> Rule<Value<'static>> {
        let Some(object) = schema.as_object() else {
            return self.malformed("one of `type`, `anyOf`, `$ref` field is required");
        };
        match object.get("type") {
            Some(Value::String(kind)) => return self.typed(kind, object),
            Some(Value::Array(kinds)) => {
                return self
                    .type_list(kinds, object)
                    .map_err(|error| self.in_field(error, "type", "unknown variant"));
            }
            Some(other) => return self.wrong_type(other, "variant identifier"),
            None => {}
        }
        if let Some(choices) = object.get("anyOf") {
            return self.any_of(choices, object);
        }
        match object.get("$ref") {
            Some(Value::String(target)) => {
                let mut result = Object::new();
                result.insert("$ref", Value::string(target.clone().into_owned()));
                Ok(Value::Object(result))
            }
            Some(other) => self
                .wrong_type(other, "a string")
                .map_err(|error| self.in_field(error, "$ref", "invalid type")),
            None => self.malformed("one of `type`, `anyOf`, `$ref` field is required"),
        }
    }

    fn typed(&self, kind: &str, object: &Object<'_>) -> Rule<Value<'static>> {
        match kind {
            "object" => self.object(object, false),
            "string" => self.string(object),
            "number" | "integer" => self.number(kind, object),
            "array" => self.array(object),
            other if !KINDS.contains(&other) => self.malformed(format!(
                "unknown variant `{other}`, expected one of {}",
                variants(&KINDS)
            )),
            _ => {
                let mut result = Object::new();
                result.insert("type", Value::string(kind.to_owned()));
                self.copy_string(object, "description", &mut result)?;
                Ok(Value::Object(result))
            }
        }
    }

    fn object(&self, object: &Object<'_>, allow_empty: bool) -> Rule<Value<'static>> {
        let mut properties = Object::new();
        match object.get("properties") {
            None | Some(Value::Null) => {}
            Some(Value::Object(members)) => {
                properties = self.nodes(members)?;
            }
            Some(other) => return self.wrong_type(other, "a map"),
        }
        let mut description = Object::new();
        self.copy_string(object, "description", &mut description)?;
        let is_open = match object.get("additionalProperties") {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Bool(true)) => true,
            Some(other) => return self.wrong_type(other, "a boolean"),
        };
        if !self.checks_rules {
            check_required(self, object.get("required"), &properties)?;
            return Ok(Value::Null);
        }
        if properties.is_empty() && !allow_empty {
            return refuse("An object with no properties is not allowed.");
        }
        if is_open {
            return refuse("additionalProperties should not be true");
        }
        check_required(self, object.get("required"), &properties)?;
        let required = properties
            .iter()
            .map(|(name, _)| Value::string(name.to_owned()))
            .collect();
        let mut result = Object::new();
        result.insert("type", Value::string("object"));
        result.insert("properties", Value::Object(properties));
        result.insert("additionalProperties", Value::Bool(false));
        result.insert("required", Value::Array(required));
        for (key, value) in description {
            result.insert(key, value);
        }
        Ok(Value::Object(result))
    }

    fn string(&self, object: &Object<'_>) -> Rule<Value<'static>> {
        let mut result = Object::new();
        result.insert("type", Value::string("string"));
        self.copy_string(object, "description", &mut result)?;
        self.copy_string(object, "pattern", &mut result)?;
        match object.get("format") {
            None | Some(Value::Null) => {}
            Some(Value::String(format)) if FORMATS.contains(&format.as_ref()) => {
                result.insert("format", Value::string(format.clone().into_owned()));
            }
            Some(Value::String(format)) => {
                return self.malformed(format!(
                    "unknown variant `{format}`, expected one of {}",
                    variants(&FORMATS)
                ));
            }
            Some(other) => return self.wrong_type(other, "string or map"),
        }
        match object.get("enum") {
            None | Some(Value::Null) => {}
            Some(Value::Array(items)) => {
                if let Some(other) = items.iter().find(|item| item.as_str().is_none()) {
                    return self.wrong_type(other, "a string");
                }
                result.insert("enum", Value::Array(items.clone()).into_owned());
            }
            Some(other) => return self.wrong_type(other, "a sequence"),
        }
        self.copy_kept(
            object,
            &["const", "default", "minLength", "maxLength"],
            &mut result,
        );
        Ok(Value::Object(result))
    }

    fn number(&self, kind: &str, object: &Object<'_>) -> Rule<Value<'static>> {
        const KEYS: [&str; 7] = [
            "const",
            "default",
            "minimum",
            "maximum",
            "exclusiveMinimum",
            "exclusiveMaximum",
            "multipleOf",
        ];
        let mut result = Object::new();
        result.insert("type", Value::string(kind.to_owned()));
        self.copy_string(object, "description", &mut result)?;
        for key in KEYS {
            match object.get(key) {
                None | Some(Value::Null) => {}
                Some(value @ Value::Number(number)) => {
                    let fits = match number {
                        Number::Unsigned(value) => i64::try_from(*value).is_ok(),
                        Number::Signed(_) => true,
                        Number::Float(_) => false,
                    };
                    if kind == "integer" && !fits {
                        return self.wrong_type(value, "i64");
                    }
                    result.insert(key, value.clone().into_owned());
                }
                Some(other) if kind == "integer" => return self.wrong_type(other, "i64"),
                Some(other) => return self.wrong_type(other, "a JSON number"),
            }
        }
        if !self.official {
            self.copy_kept(object, &["enum"], &mut result);
        }
        Ok(Value::Object(result))
    }

    fn array(&self, object: &Object<'_>) -> Rule<Value<'static>> {
        let mut result = Object::new();
        result.insert("type", Value::string("array"));
        match object.get("items") {
            Some(items) => result.insert("items", self.node(items)?),
            None => return self.malformed("missing field `items`"),
        }
        self.copy_string(object, "description", &mut result)?;
        self.copy_kept(
            object,
            &["minItems", "maxItems", "uniqueItems"],
            &mut result,
        );
        Ok(Value::Object(result))
    }

    fn any_of(&self, choices: &Value<'_>, object: &Object<'_>) -> Rule<Value<'static>> {
        let choices = match choices.as_array() {
            Some(choices) => choices
                .iter()
                .map(|choice| self.choice(choice))
                .collect::<Rule<Vec<_>>>(),
            None => self.wrong_type(choices, "a sequence"),
        };
        let mut result = Object::new();
        result.insert(
            "anyOf",
            Value::Array(choices.map_err(|error| self.in_field(error, "anyOf", ""))?),
        );
        self.copy_string(object, "description", &mut result)
            .map_err(|error| self.in_field(error, "description", ""))?;
        Ok(Value::Object(result))
    }

    /// A member of `anyOf`, which has one type of its own.
    fn choice(&self, schema: &Value<'_>) -> Rule<Value<'static>> {
        let Some(object) = schema.as_object() else {
            return self.wrong_type(schema, "internally tagged enum JsonSchemaType");
        };
        match object.get("type") {
            Some(Value::String(kind)) => self.typed(kind, object),
            Some(other) => self.wrong_type(other, "variant identifier"),
            // References, nested choices and lists of types can be enforced, the original refuses them here.
            None if !self.official => self.node(schema),
            None => self.malformed("missing field `type`"),
        }
    }

    /// Says in which member a shape is wrong; broken rules keep their text.
    fn in_field(&self, error: ConversionError, field: &str, kind: &str) -> ConversionError {
        match error.message.strip_prefix(self.what) {
            Some(detail) if detail.starts_with(kind) || detail.starts_with("invalid type") => {
                ConversionError::new(format!("{}field `{field}`: {detail}", self.what))
            }
            _ => error,
        }
    }

    fn type_list(&self, kinds: &[Value<'_>], object: &Object<'_>) -> Rule<Value<'static>> {
        for kind in kinds {
            match kind.as_str() {
                Some(word) if SCALARS.contains(&word) => {}
                Some(word) => {
                    return self.malformed(format!(
                        "unknown variant `{word}`, expected one of {}",
                        variants(&SCALARS)
                    ));
                }
                None => return self.wrong_type(kind, "string or map"),
            }
        }
        let mut result = Object::new();
        result.insert("type", Value::Array(kinds.to_vec()).into_owned());
        self.copy_string(object, "description", &mut result)?;
        Ok(Value::Object(result))
    }

    fn copy_string(
        &self,
        from: &Object<'_>,
        key: &'static str,
        to: &mut Object<'static>,
    ) -> Rule<()> {
        match from.get(key) {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(text)) => {
                to.insert(key, Value::string(text.clone().into_owned()));
                Ok(())
            }
            Some(other) => self.wrong_type(other, "a string"),
        }
    }

    /// Members that the original loses.
    fn copy_kept(&self, from: &Object<'_>, keys: &[&'static str], to: &mut Object<'static>) {
        if self.official {
            return;
        }
        for &key in keys {
            if let Some(value) = from.get(key).filter(|value| !value.is_null()) {
                to.insert(key, value.clone().into_owned());
            }
        }
    }
}

fn check_required(
    rules: &Normalizer,
    required: Option<&Value<'_>>,
    properties: &Object<'_>,
) -> Rule<()> {
    let names = match required {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(names)) => names,
        Some(other) => return rules.wrong_type(other, "a sequence"),
    };
    let known: HashSet<&str> = properties.iter().map(|(name, _)| name).collect();
    let mut seen = HashSet::new();
    for name in names {
        let Some(name) = name.as_str() else {
            return rules.wrong_type(name, "a string");
        };
        if !rules.checks_rules {
            continue;
        }
        if !seen.insert(name) {
            return refuse(format!("Duplicate required property '{name}'"));
        }
        if !known.contains(name) {
            return refuse(format!("Required property '{name}' not found in object"));
        }
    }
    if rules.checks_rules && seen.len() != properties.len() {
        return refuse("Required properties must match all properties in the object");
    }
    Ok(())
}
