//! A parser that borrows strings from its input.

use std::borrow::Cow;
use std::fmt;

use crate::number::Number;
use crate::value::{Object, Value};
use crate::write::plain_prefix;

/// Deepest nesting of arrays and objects that [`parse`] accepts.
pub const MAX_DEPTH: usize = 127;

/// Why a text is not JSON, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// What was wrong.
    pub reason: &'static str,
    /// Byte offset into the text.
    pub offset: usize,
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} at byte {}", self.reason, self.offset)
    }
}

impl std::error::Error for ParseError {}

/// Parses one JSON value that fills the whole text, blanks aside.
pub fn parse(text: &str) -> Result<Value<'_>, ParseError> {
    let mut parser = Parser {
        text,
        bytes: text.as_bytes(),
        position: 0,
        depth: 0,
    };
    parser.skip_blanks();
    let value = parser.value()?;
    parser.skip_blanks();
    if parser.position < parser.bytes.len() {
        return Err(parser.error("unexpected text after the value"));
    }
    Ok(value)
}

/// [`parse`] for bytes, which must be UTF-8.
pub fn parse_bytes(bytes: &[u8]) -> Result<Value<'_>, ParseError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => parse(text),
        Err(error) => Err(ParseError {
            reason: "invalid UTF-8",
            offset: error.valid_up_to(),
        }),
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    position: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, reason: &'static str) -> ParseError {
        ParseError {
            reason,
            offset: self.position,
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.position).copied()
    }

    fn skip_blanks(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.peek() {
            self.position += 1;
        }
    }

    fn value(&mut self) -> Result<Value<'a>, ParseError> {
        match self.peek() {
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'{') => self.nested(Self::object),
            Some(b'[') => self.nested(Self::array),
            Some(b't') => self.literal("true", Value::Bool(true)),
            Some(b'f') => self.literal("false", Value::Bool(false)),
            Some(b'n') => self.literal("null", Value::Null),
            Some(b'-' | b'0'..=b'9') => Ok(Value::Number(self.number()?)),
            Some(_) => Err(self.error("expected a value")),
            None => Err(self.error("end of text where a value was expected")),
        }
    }

    fn nested(
        &mut self,
        read: fn(&mut Self) -> Result<Value<'a>, ParseError>,
    ) -> Result<Value<'a>, ParseError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error("nesting deeper than 127 levels"));
        }
        self.depth += 1;
        self.position += 1;
        self.skip_blanks();
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn literal(&mut self, word: &str, value: Value<'a>) -> Result<Value<'a>, ParseError> {
        if self.bytes[self.position..].starts_with(word.as_bytes()) {
            self.position += word.len();
            Ok(value)
        } else {
            Err(self.error("expected a value"))
        }
    }

    fn array(&mut self) -> Result<Value<'a>, ParseError> {
        let mut items = Vec::new();
        if self.peek() == Some(b']') {
            self.position += 1;
            return Ok(Value::Array(items));
        }
        loop {
            items.push(self.value()?);
            self.skip_blanks();
            match self.peek() {
                Some(b',') => self.position += 1,
                Some(b']') => {
                    self.position += 1;
                    return Ok(Value::Array(items));
                }
                _ => return Err(self.error("expected `,` or `]`")),
            }
            self.skip_blanks();
        }
    }

    fn object(&mut self) -> Result<Value<'a>, ParseError> {
        if self.peek() == Some(b'}') {
            self.position += 1;
            return Ok(Value::Object(Object::new()));
        }
        let mut entries = Vec::with_capacity(4);
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a string as key"));
            }
            let key = self.string()?;
            self.skip_blanks();
            if self.peek() != Some(b':') {
                return Err(self.error("expected `:`"));
            }
            self.position += 1;
            self.skip_blanks();
            entries.push((key, self.value()?));
            self.skip_blanks();
            match self.peek() {
                Some(b',') => self.position += 1,
                Some(b'}') => {
                    self.position += 1;
                    return Ok(Value::Object(Object::from_entries(entries)));
                }
                _ => return Err(self.error("expected `,` or `}`")),
            }
            self.skip_blanks();
        }
    }

    fn string(&mut self) -> Result<Cow<'a, str>, ParseError> {
        self.position += 1;
        let start = self.position;
        self.position += plain_prefix(&self.bytes[start..]);
        if self.peek() == Some(b'"') {
            let text = &self.text[start..self.position];
            self.position += 1;
            return Ok(Cow::Borrowed(text));
        }
        let mut owned = String::with_capacity(self.position - start + 32);
        owned.push_str(&self.text[start..self.position]);
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.position += 1;
                    return Ok(Cow::Owned(owned));
                }
                Some(b'\\') => {
                    self.position += 1;
                    owned.push(self.escape()?);
                }
                Some(_) => return Err(self.error("control character in a string")),
                None => return Err(self.error("end of text inside a string")),
            }
            let start = self.position;
            self.position += plain_prefix(&self.bytes[start..]);
            owned.push_str(&self.text[start..self.position]);
        }
    }

    fn escape(&mut self) -> Result<char, ParseError> {
        let letter = self
            .peek()
            .ok_or_else(|| self.error("end of text inside a string"))?;
        self.position += 1;
        Ok(match letter {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => return Err(self.error("unknown escape")),
        })
    }

    fn unicode_escape(&mut self) -> Result<char, ParseError> {
        let first = self.hex4()?;
        let code = match first {
            0xd800..=0xdbff => {
                if !self.bytes[self.position..].starts_with(b"\\u") {
                    return Err(self.error("lone surrogate in a string"));
                }
                self.position += 2;
                let second = self.hex4()?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(self.error("lone surrogate in a string"));
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| self.error("lone surrogate in a string"))
    }

    fn hex4(&mut self) -> Result<u32, ParseError> {
        let digits = self
            .bytes
            .get(self.position..self.position + 4)
            .ok_or_else(|| self.error("end of text inside a string"))?;
        let mut code = 0;
        for &digit in digits {
            let value = (digit as char)
                .to_digit(16)
                .ok_or_else(|| self.error("expected four hexadecimal digits"))?;
            code = code * 16 + value;
        }
        self.position += 4;
        Ok(code)
    }

    fn digits(&mut self) -> Result<(), ParseError> {
        let start = self.position;
        while let Some(b'0'..=b'9') = self.peek() {
            self.position += 1;
        }
        if self.position == start {
            return Err(self.error("expected a digit"));
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Number, ParseError> {
        let start = self.position;
        let negative = self.peek() == Some(b'-');
        if negative {
            self.position += 1;
        }
        if self.peek() == Some(b'0') {
            self.position += 1;
            if let Some(b'0'..=b'9') = self.peek() {
                return Err(self.error("number with a leading zero"));
            }
        } else {
            self.digits()?;
        }
        let mut integral = true;
        if self.peek() == Some(b'.') {
            integral = false;
            self.position += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            integral = false;
            self.position += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.position += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.position];
        if integral {
            if negative && text != "-0" {
                if let Ok(value) = text.parse() {
                    return Ok(Number::Signed(value));
                }
            } else if let Ok(value) = text.parse() {
                return Ok(Number::Unsigned(value));
            }
        }
        match text.parse::<f64>() {
            Ok(value) if value.is_finite() => Ok(Number::Float(value)),
            _ => Err(self.error("number out of range")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(text: &str) -> String {
        match parse(text) {
            Ok(value) => value.to_compact(),
            Err(error) => format!("{error}"),
        }
    }

    #[test]
    fn round_trips() {
        for text in [
            "null",
            "[1,-2,2.5,1e+22,\"é\\n\"]",
            "{\"a\":{\"b\":[]},\"c\":true}",
            "\"\"",
        ] {
            assert_eq!(round(text), text);
        }
    }

    #[test]
    fn duplicate_keys_keep_first_place_and_last_value() {
        assert_eq!(round("{\"a\":1,\"b\":2,\"a\":3}"), "{\"a\":3,\"b\":2}");
        let many: Vec<String> = (0..40).map(|n| format!("\"k{}\":{n}", n % 20)).collect();
        let value = round(&format!("{{{}}}", many.join(",")));
        assert!(value.starts_with("{\"k0\":20,\"k1\":21,"));
    }

    #[test]
    fn numbers_beyond_64_bits_are_doubles() {
        assert_eq!(round("18446744073709551615"), "18446744073709551615");
        assert_eq!(round("18446744073709551616"), "1.8446744073709552e+19");
        assert_eq!(round("-9223372036854775808"), "-9223372036854775808");
        assert_eq!(round("-0"), "-0.0");
    }

    #[test]
    fn rejects_what_is_not_json() {
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":}",
            "{a:1}",
            "01",
            "1.",
            "+1",
            "1e400",
            "\"\\ud800\"",
            "\"\\ud800\\u0041\"",
            "\"\u{1}\"",
            "nul",
            "[1] 2",
            "\"\\x\"",
            "\u{feff}{}",
            "NaN",
            "'a'",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
        assert!(parse_bytes(b"\"\xff\"").is_err());
    }

    #[test]
    fn depth_limit_is_exact() {
        let at = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(&at(MAX_DEPTH)).is_ok());
        assert!(parse(&at(MAX_DEPTH + 1)).is_err());
    }

    #[test]
    fn surrogate_pairs_join() {
        assert_eq!(parse("\"\\ud83c\\udf0a\""), Ok(Value::string("🌊")));
    }
}
