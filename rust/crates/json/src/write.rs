//! Writing values and escaping strings.

use crate::number::FloatStyle;
use crate::value::Value;

/// For each byte the letter of its two-character escape, `u` for `\u00XX`, 0 for none.
const ESCAPES: [u8; 256] = escape_table();

const fn escape_table() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[b'\n' as usize] = b'n';
    table[b'\r' as usize] = b'r';
    table[b'\t' as usize] = b't';
    table[0x08] = b'b';
    table[0x0c] = b'f';
    table
}

/// Length of the longest prefix of `bytes` that needs no escape.
pub(crate) fn plain_prefix(bytes: &[u8]) -> usize {
    let mut length = 0;
    // A fixed block without early exit becomes vector instructions.
    for block in bytes.chunks_exact(32) {
        let special = block.iter().fold(false, |found, &byte| {
            found | (byte < 0x20) | (byte == b'"') | (byte == b'\\')
        });
        if special {
            break;
        }
        length += 32;
    }
    length
        + bytes[length..]
            .iter()
            .position(|&byte| ESCAPES[byte as usize] != 0)
            .unwrap_or(bytes.len() - length)
}

/// Appends `text` escaped as the inside of a JSON string.
///
/// Quotes, backslashes and C0 controls are escaped; everything else, `/`, U+007F and U+2028 included, is copied.
pub fn escape_into(out: &mut String, text: &str) {
    let mut rest = text;
    loop {
        let plain = plain_prefix(rest.as_bytes());
        out.push_str(&rest[..plain]);
        let Some(&byte) = rest.as_bytes().get(plain) else {
            return;
        };
        match ESCAPES[byte as usize] {
            b'u' => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                out.push_str("\\u00");
                out.push(HEX[usize::from(byte >> 4)] as char);
                out.push(HEX[usize::from(byte & 15)] as char);
            }
            letter => {
                out.push('\\');
                out.push(letter as char);
            }
        }
        rest = &rest[plain + 1..];
    }
}

/// Appends `text` as a JSON string with its quotes.
pub fn write_string(out: &mut String, text: &str) {
    out.push('"');
    escape_into(out, text);
    out.push('"');
}

/// Appends `value` without blanks.
pub fn write_compact(out: &mut String, value: &Value<'_>) {
    write_separated(out, value, FloatStyle::Compact, ",", ":");
}

/// Appends `value` with `, ` and `: `, the form that prompts use.
pub fn write_spaced(out: &mut String, value: &Value<'_>, style: FloatStyle) {
    write_separated(out, value, style, ", ", ": ");
}

fn write_separated(
    out: &mut String,
    value: &Value<'_>,
    style: FloatStyle,
    comma: &str,
    colon: &str,
) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => number.write(out, style),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(comma);
                }
                write_separated(out, item, style, comma, colon);
            }
            out.push(']');
        }
        Value::Object(object) => {
            out.push('{');
            for (index, (key, item)) in object.iter().enumerate() {
                if index > 0 {
                    out.push_str(comma);
                }
                write_string(out, key);
                out.push_str(colon);
                write_separated(out, item, style, comma, colon);
            }
            out.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_only_what_json_requires() {
        let mut out = String::new();
        escape_into(
            &mut out,
            "a\"b\\c/\n\r\t\u{8}\u{c}\u{1}\u{1f}\u{7f}\u{2028}é🌊",
        );
        assert_eq!(
            out,
            "a\\\"b\\\\c/\\n\\r\\t\\b\\f\\u0001\\u001f\u{7f}\u{2028}é🌊"
        );
    }

    #[test]
    fn long_plain_runs_and_escapes_on_every_offset() {
        for offset in 0..80 {
            let text = format!("{}\"{}", "x".repeat(offset), "y".repeat(80 - offset));
            let mut out = String::new();
            escape_into(&mut out, &text);
            assert_eq!(out, text.replace('"', "\\\""));
        }
    }
}
