//! Pieces of JSON that several events share.

use std::fmt::Write;

use recipe_json::{escape_into, write_f64, write_string, FloatStyle};
use recipe_stream::{LogprobEntry, MalformedCall};

pub(crate) fn number(out: &mut String, value: u64) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{value}");
}

pub(crate) fn optional_string(out: &mut String, value: Option<&str>) {
    match value {
        Some(text) => write_string(out, text),
        None => out.push_str("null"),
    }
}

pub(crate) fn list<T>(out: &mut String, items: &[T], mut write: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

/// A token as text; one that is no UTF-8 is spelled byte by byte.
fn token(out: &mut String, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => write_string(out, text),
        Err(_) => {
            let mut spelled = String::with_capacity(4 * bytes.len());
            for byte in bytes {
                let _ = write!(spelled, "\\x{byte:02x}");
            }
            out.push('"');
            escape_into(out, &spelled);
            out.push('"');
        }
    }
}

fn token_members(out: &mut String, bytes: &[u8], logprob: f64) {
    out.push_str("\"token\":");
    token(out, bytes);
    out.push_str(",\"logprob\":");
    if logprob.is_finite() {
        write_f64(out, logprob, FloatStyle::Compact);
    } else {
        out.push_str("null");
    }
    out.push_str(",\"bytes\":");
    list(out, bytes, |out, byte| number(out, u64::from(*byte)));
}

pub(crate) fn logprobs(out: &mut String, entries: &[LogprobEntry]) {
    list(out, entries, |out, entry| {
        out.push('{');
        token_members(out, &entry.bytes, entry.logprob);
        out.push_str(",\"top_logprobs\":");
        list(out, &entry.top, |out, top| {
            out.push('{');
            token_members(out, &top.bytes, top.logprob);
            out.push('}');
        });
        out.push('}');
    });
}

/// The list of malformed calls, a member of ours that is present only when there are any.
pub(crate) fn malformed_member(out: &mut String, calls: &[MalformedCall]) {
    if calls.is_empty() {
        return;
    }
    out.push_str(",\"malformed_tool_calls\":");
    list(out, calls, |out, call| {
        out.push_str("{\"index\":");
        match call.index {
            Some(index) => number(out, index as u64),
            None => out.push_str("null"),
        }
        out.push_str(",\"name\":");
        write_string(out, &call.name);
        out.push_str(",\"reason\":\"");
        out.push_str(call.reason.as_str());
        out.push_str("\"}");
    });
}
