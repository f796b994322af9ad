//! Reading `tokenizer.json`.

use std::fmt;
use std::sync::atomic::AtomicU8;

use fancy_regex::Regex;
use recipe_json::{parse, Number, Object, Value};

use crate::added::{AddedToken, AddedVocabulary};
use crate::bpe::{Bpe, TokenBytes};
use crate::bytes::inverse;
use crate::split::{Splitter, BYTE_LEVEL_PATTERN, V4_PATTERNS};
use crate::table::{Merge, PairTable, StringTable};

/// Why a tokenizer file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// The text is not JSON.
    Json(recipe_json::ParseError),
    /// A member is missing or has the wrong type.
    Member {
        /// Path of the member.
        path: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A feature that V4-series files do not use.
    Unsupported {
        /// Path of the member.
        path: &'static str,
        /// Its value, shortened.
        value: String,
        /// What is supported.
        supported: &'static str,
    },
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerError::Json(error) => write!(formatter, "tokenizer file is not JSON: {error}"),
            TokenizerError::Member { path, expected } => {
                write!(formatter, "tokenizer file: `{path}` must be {expected}")
            }
            TokenizerError::Unsupported {
                path,
                value,
                supported,
            } => write!(
                formatter,
                "tokenizer file: `{path}` is {value}, supported: {supported}"
            ),
        }
    }
}

impl std::error::Error for TokenizerError {}

/// What a file contains.
pub(crate) struct Parts {
    pub bpe: Bpe,
    pub added: AddedVocabulary,
    pub splitter: Splitter,
    pub add_prefix_space: bool,
}

fn member(path: impl Into<String>, expected: &'static str) -> TokenizerError {
    TokenizerError::Member {
        path: path.into(),
        expected,
    }
}

fn unsupported(path: &'static str, value: &Value<'_>, supported: &'static str) -> TokenizerError {
    let value: String = value.to_compact().chars().take(120).collect();
    TokenizerError::Unsupported {
        path,
        value,
        supported,
    }
}

pub(crate) fn read(text: &str) -> Result<Parts, TokenizerError> {
    let file = parse(text).map_err(TokenizerError::Json)?;
    let model = file
        .get("model")
        .and_then(Value::as_object)
        .ok_or_else(|| member("model", "an object"))?;
    check_model(model)?;
    if let Some(normalizer) = file.get("normalizer") {
        let is_empty = normalizer
            .get("normalizers")
            .and_then(Value::as_array)
            .is_some_and(<[_]>::is_empty);
        if !normalizer.is_null() && !is_empty {
            return Err(unsupported(
                "normalizer",
                normalizer,
                "none or an empty sequence",
            ));
        }
    }
    let (splitter, add_prefix_space) =
        pre_tokenizer(file.get("pre_tokenizer").unwrap_or(&Value::Null))?;
    let added = added_tokens(file.get("added_tokens").unwrap_or(&Value::Null))?;
    let added =
        AddedVocabulary::new(&added).map_err(|_| member("added_tokens", "few enough to index"))?;
    Ok(Parts {
        bpe: byte_pairs(model)?,
        added,
        splitter,
        add_prefix_space,
    })
}

fn check_model(model: &Object<'_>) -> Result<(), TokenizerError> {
    if model.get("type").and_then(Value::as_str) != Some("BPE") {
        return Err(unsupported(
            "model.type",
            model.get("type").unwrap_or(&Value::Null),
            "\"BPE\"",
        ));
    }
    for (path, key) in [
        ("model.dropout", "dropout"),
        (
            "model.continuing_subword_prefix",
            "continuing_subword_prefix",
        ),
        ("model.end_of_word_suffix", "end_of_word_suffix"),
        ("model.byte_fallback", "byte_fallback"),
        ("model.ignore_merges", "ignore_merges"),
    ] {
        match model.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(value) => return Err(unsupported(path, value, "null or false")),
        }
    }
    Ok(())
}

fn byte_pairs(model: &Object<'_>) -> Result<Bpe, TokenizerError> {
    let vocabulary = model
        .get("vocab")
        .and_then(Value::as_object)
        .ok_or_else(|| member("model.vocab", "an object"))?;
    let to_byte = inverse();
    let mut entries = Vec::with_capacity(vocabulary.len());
    let mut largest = 0;
    for (text, id) in vocabulary.iter() {
        let id =
            token_id(id).ok_or_else(|| member(format!("model.vocab[{text:?}]"), "a token id"))?;
        largest = largest.max(id);
        entries.push((text, id));
    }
    let mut token_bytes = TokenBytes {
        bytes: Vec::with_capacity(entries.len() * 8),
        spans: vec![(0, 0); largest as usize + 1],
    };
    let mut strings = StringTable::new(entries.len());
    let mut byte_ids = [u32::MAX; 256];
    for (text, id) in &entries {
        let start = token_bytes.bytes.len();
        if !push_bytes(text, &to_byte, &mut token_bytes.bytes) {
            // Not written in the byte alphabet: only reachable as an added token.
            token_bytes.bytes.truncate(start);
            continue;
        }
        let end = token_bytes.bytes.len();
        token_bytes.spans[*id as usize] = (start as u32, end as u32);
        if end - start == 1 {
            byte_ids[usize::from(token_bytes.bytes[start])] = *id;
        }
        strings.insert(&token_bytes.bytes[start..], *id);
    }
    let whole = (0..=largest).map(|_| AtomicU8::new(0)).collect();
    let mut bpe = Bpe {
        token_bytes,
        strings,
        byte_ids,
        merges: PairTable::new(0),
        byte_merges: vec![Merge::NONE; 0x1_0000],
        whole,
    };
    read_merges(model, &to_byte, &mut bpe)?;
    Ok(bpe)
}

fn read_merges(
    model: &Object<'_>,
    to_byte: &[Option<u8>],
    bpe: &mut Bpe,
) -> Result<(), TokenizerError> {
    let merges = model
        .get("merges")
        .and_then(Value::as_array)
        .ok_or_else(|| member("model.merges", "a list"))?;
    let mut pairs = PairTable::new(merges.len());
    let mut joined = Vec::new();
    for (rank, merge) in merges.iter().enumerate() {
        let wrong = || {
            member(
                format!("model.merges[{rank}]"),
                "two tokens whose union is in the vocabulary",
            )
        };
        let (left, right) = match merge {
            Value::String(text) => text.split_once(' ').ok_or_else(wrong)?,
            Value::Array(parts) => match parts.as_slice() {
                [Value::String(left), Value::String(right)] => (left.as_ref(), right.as_ref()),
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        joined.clear();
        if !push_bytes(left, to_byte, &mut joined) {
            return Err(wrong());
        }
        let middle = joined.len();
        if !push_bytes(right, to_byte, &mut joined) {
            return Err(wrong());
        }
        let find = |bytes: &[u8]| {
            bpe.strings
                .get(bytes, |id| bpe.token_bytes.get(id) == Some(bytes))
                .ok_or_else(wrong)
        };
        let (left, right) = (find(&joined[..middle])?, find(&joined[middle..])?);
        let merge = Merge {
            rank: rank as u32,
            id: find(&joined)?,
        };
        pairs.insert(left, right, merge);
        if let [first, second] = joined[..] {
            bpe.byte_merges[usize::from(first) << 8 | usize::from(second)] = merge;
        }
    }
    bpe.merges = pairs;
    Ok(())
}

/// Appends the bytes that `text` stands for; false if a character is outside the byte alphabet.
fn push_bytes(text: &str, to_byte: &[Option<u8>], out: &mut Vec<u8>) -> bool {
    text.chars()
        .all(|character| match to_byte.get(character as usize) {
            Some(Some(byte)) => {
                out.push(*byte);
                true
            }
            _ => false,
        })
}

fn token_id(value: &Value<'_>) -> Option<u32> {
    // Far above any vocabulary, and small enough that a table by id cannot exhaust memory.
    const LARGEST: u64 = 1 << 24;
    match value {
        Value::Number(Number::Unsigned(id)) if *id < LARGEST => Some(*id as u32),
        _ => None,
    }
}

fn added_tokens(list: &Value<'_>) -> Result<Vec<AddedToken>, TokenizerError> {
    if list.is_null() {
        return Ok(Vec::new());
    }
    let list = list
        .as_array()
        .ok_or_else(|| member("added_tokens", "a list"))?;
    let mut tokens = Vec::with_capacity(list.len());
    for (index, token) in list.iter().enumerate() {
        let content = token.get("content").and_then(Value::as_str);
        let id = token.get("id").and_then(token_id);
        let (Some(content), Some(id)) = (content, id) else {
            return Err(member(
                format!("added_tokens[{index}]"),
                "an object with `content` and `id`",
            ));
        };
        for flag in ["lstrip", "rstrip", "single_word"] {
            if token.get(flag) == Some(&Value::Bool(true)) {
                return Err(unsupported(
                    "added_tokens",
                    token,
                    "tokens without lstrip, rstrip and single_word",
                ));
            }
        }
        if !content.is_empty() {
            let normalized = token.get("normalized") == Some(&Value::Bool(true));
            tokens.push(AddedToken {
                id,
                content: content.into(),
                normalized,
            });
        }
    }
    Ok(tokens)
}

const SUPPORTED_SPLIT: &str = "a sequence of isolated regex splits and one ByteLevel";

fn pre_tokenizer(value: &Value<'_>) -> Result<(Splitter, bool), TokenizerError> {
    let wrong = || unsupported("pre_tokenizer", value, SUPPORTED_SPLIT);
    let single = std::slice::from_ref(value);
    let steps = match value.get("type").and_then(Value::as_str) {
        Some("Sequence") => value
            .get("pretokenizers")
            .and_then(Value::as_array)
            .ok_or_else(wrong)?,
        Some("ByteLevel") => single,
        _ => return Err(wrong()),
    };
    let mut patterns = Vec::new();
    let mut add_prefix_space = false;
    let Some((byte_level, splits)) = steps.split_last() else {
        return Err(wrong());
    };
    for split in splits {
        let isolated = split.get("type").and_then(Value::as_str) == Some("Split")
            && split.get("behavior").and_then(Value::as_str) == Some("Isolated")
            && split.get("invert") != Some(&Value::Bool(true));
        let pattern = split
            .get("pattern")
            .and_then(|pattern| pattern.get("Regex"))
            .and_then(Value::as_str);
        match pattern {
            Some(pattern) if isolated => patterns.push(pattern),
            _ => return Err(wrong()),
        }
    }
    if byte_level.get("type").and_then(Value::as_str) != Some("ByteLevel") {
        return Err(wrong());
    }
    if byte_level.get("add_prefix_space") == Some(&Value::Bool(true)) {
        add_prefix_space = true;
    }
    if byte_level.get("use_regex") != Some(&Value::Bool(false)) {
        patterns.push(BYTE_LEVEL_PATTERN);
    }
    if patterns == V4_PATTERNS {
        return Ok((Splitter::V4, add_prefix_space));
    }
    let compiled = patterns
        .iter()
        .map(|pattern| Regex::new(pattern))
        .collect::<Result<Vec<_>, _>>();
    Ok((
        Splitter::Patterns(compiled.map_err(|_| wrong())?),
        add_prefix_space,
    ))
}
