//! Checking JSON text that arrives piece by piece.

use crate::parse::MAX_DEPTH;

/// Byte offset, counted over everything fed so far, of the first byte that cannot continue a JSON value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidatorError {
    /// Offset of the offending byte.
    pub offset: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrArrayEnd,
    KeyOrObjectEnd,
    Key,
    Colon,
    CommaOrEnd,
    String {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
        code: u16,
        low: bool,
    },
    LowBackslash {
        key: bool,
    },
    LowLetter {
        key: bool,
    },
    Literal {
        rest: &'static [u8],
    },
    NumberStart,
    NumberZero,
    NumberInteger,
    FractionStart,
    Fraction,
    ExponentSign,
    ExponentStart,
    Exponent,
    Done,
}

/// A push-down check of exactly one JSON value, blanks around it allowed.
///
/// It accepts exactly what [`parse`](crate::parse()) accepts: surrogates must pair, numbers must fit a double.
#[derive(Debug, Clone)]
pub struct Validator {
    stack: Vec<bool>,
    expect: Expect,
    consumed: usize,
    max_depth: usize,
    /// Text of the number being read, for the range check at its end.
    number: String,
}

impl Default for Validator {
    fn default() -> Self {
        Self::new()
    }
}

impl Validator {
    /// A validator at the start of a value.
    pub fn new() -> Self {
        Self::with_max_depth(MAX_DEPTH)
    }

    /// A validator that allows fewer levels of nesting than [`MAX_DEPTH`].
    pub fn with_max_depth(max_depth: usize) -> Self {
        Validator {
            stack: Vec::new(),
            expect: Expect::Value,
            consumed: 0,
            max_depth,
            number: String::new(),
        }
    }

    /// Feeds bytes; stops at the first one that cannot continue a value.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), ValidatorError> {
        for &byte in bytes {
            if !self.step(byte) {
                return Err(ValidatorError {
                    offset: self.consumed,
                });
            }
            self.consumed += 1;
        }
        Ok(())
    }

    /// Whether the bytes so far are one complete value.
    pub fn is_complete(&self) -> bool {
        match self.expect {
            Expect::Done => true,
            Expect::NumberZero | Expect::NumberInteger | Expect::Fraction | Expect::Exponent => {
                self.stack.is_empty() && self.number_fits()
            }
            _ => false,
        }
    }

    /// Whether an array or object that was opened has been closed again, which ends the value at once.
    pub fn is_closed(&self) -> bool {
        self.expect == Expect::Done
    }

    fn step(&mut self, byte: u8) -> bool {
        match self.expect {
            Expect::String { key } => self.in_string(byte, key),
            Expect::Escape { key } => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                    self.go(Expect::String { key })
                }
                b'u' => self.go(Expect::Hex {
                    key,
                    left: 4,
                    code: 0,
                    low: false,
                }),
                _ => false,
            },
            Expect::Hex {
                key,
                left,
                code,
                low,
            } => self.in_hex(byte, key, left, code, low),
            Expect::LowBackslash { key } => byte == b'\\' && self.go(Expect::LowLetter { key }),
            Expect::LowLetter { key } => {
                byte == b'u'
                    && self.go(Expect::Hex {
                        key,
                        left: 4,
                        code: 0,
                        low: true,
                    })
            }
            Expect::Literal { rest } => match rest.split_first() {
                Some((&first, rest)) if first == byte => {
                    if rest.is_empty() {
                        self.value_end()
                    } else {
                        self.go(Expect::Literal { rest })
                    }
                }
                _ => false,
            },
            Expect::NumberStart
            | Expect::NumberZero
            | Expect::NumberInteger
            | Expect::FractionStart
            | Expect::Fraction
            | Expect::ExponentSign
            | Expect::ExponentStart
            | Expect::Exponent => self.in_number(byte),
            _ if matches!(byte, b' ' | b'\n' | b'\t' | b'\r') => true,
            Expect::Value => self.value_start(byte),
            Expect::ValueOrArrayEnd => {
                if byte == b']' {
                    self.close(false)
                } else {
                    self.value_start(byte)
                }
            }
            Expect::KeyOrObjectEnd if byte == b'}' => self.close(true),
            Expect::KeyOrObjectEnd | Expect::Key => {
                byte == b'"' && self.go(Expect::String { key: true })
            }
            Expect::Colon => byte == b':' && self.go(Expect::Value),
            Expect::CommaOrEnd => self.after_value(byte),
            Expect::Done => false,
        }
    }

    fn go(&mut self, expect: Expect) -> bool {
        self.expect = expect;
        true
    }

    fn in_hex(&mut self, byte: u8, key: bool, left: u8, code: u16, low: bool) -> bool {
        let Some(digit) = (byte as char).to_digit(16) else {
            return false;
        };
        let code = code << 4 | digit as u16;
        if left > 1 {
            return self.go(Expect::Hex {
                key,
                left: left - 1,
                code,
                low,
            });
        }
        match (code, low) {
            (0xdc00..=0xdfff, true) => self.go(Expect::String { key }),
            (_, true) | (0xdc00..=0xdfff, false) => false,
            (0xd800..=0xdbff, false) => self.go(Expect::LowBackslash { key }),
            (_, false) => self.go(Expect::String { key }),
        }
    }

    fn number_fits(&self) -> bool {
        self.number.parse::<f64>().is_ok_and(f64::is_finite)
    }

    fn value_start(&mut self, byte: u8) -> bool {
        self.number.clear();
        self.number.push(byte as char);
        match byte {
            b'"' => self.go(Expect::String { key: false }),
            b'{' => self.open(true),
            b'[' => self.open(false),
            b't' => self.go(Expect::Literal { rest: b"rue" }),
            b'f' => self.go(Expect::Literal { rest: b"alse" }),
            b'n' => self.go(Expect::Literal { rest: b"ull" }),
            b'-' => self.go(Expect::NumberStart),
            b'0' => self.go(Expect::NumberZero),
            b'1'..=b'9' => self.go(Expect::NumberInteger),
            _ => false,
        }
    }

    fn open(&mut self, object: bool) -> bool {
        if self.stack.len() >= self.max_depth {
            return false;
        }
        self.stack.push(object);
        self.go(if object {
            Expect::KeyOrObjectEnd
        } else {
            Expect::ValueOrArrayEnd
        })
    }

    fn close(&mut self, object: bool) -> bool {
        self.stack.pop() == Some(object) && self.value_end()
    }

    fn value_end(&mut self) -> bool {
        self.go(if self.stack.is_empty() {
            Expect::Done
        } else {
            Expect::CommaOrEnd
        })
    }

    fn after_value(&mut self, byte: u8) -> bool {
        match (byte, self.stack.last()) {
            (b',', Some(true)) => self.go(Expect::Key),
            (b',', Some(false)) => self.go(Expect::Value),
            (b'}', Some(true)) => self.close(true),
            (b']', Some(false)) => self.close(false),
            _ => false,
        }
    }

    fn in_string(&mut self, byte: u8, key: bool) -> bool {
        match byte {
            b'"' if key => self.go(Expect::Colon),
            b'"' => self.value_end(),
            b'\\' => self.go(Expect::Escape { key }),
            _ => byte >= 0x20,
        }
    }

    fn in_number(&mut self, byte: u8) -> bool {
        let next = match (self.expect, byte) {
            (Expect::NumberStart, b'0') => Expect::NumberZero,
            (Expect::NumberStart, b'1'..=b'9') => Expect::NumberInteger,
            (Expect::NumberInteger, b'0'..=b'9') => Expect::NumberInteger,
            (Expect::NumberZero | Expect::NumberInteger, b'.') => Expect::FractionStart,
            (Expect::FractionStart | Expect::Fraction, b'0'..=b'9') => Expect::Fraction,
            (Expect::NumberZero | Expect::NumberInteger | Expect::Fraction, b'e' | b'E') => {
                Expect::ExponentSign
            }
            (Expect::ExponentSign, b'+' | b'-') => Expect::ExponentStart,
            (Expect::ExponentSign | Expect::ExponentStart | Expect::Exponent, b'0'..=b'9') => {
                Expect::Exponent
            }
            (
                Expect::NumberZero | Expect::NumberInteger | Expect::Fraction | Expect::Exponent,
                _,
            ) => {
                return self.number_fits() && self.value_end() && self.step(byte);
            }
            _ => return false,
        };
        self.number.push(byte as char);
        self.go(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn accepts(text: &str) -> bool {
        let mut validator = Validator::new();
        validator.feed(text.as_bytes()).is_ok() && validator.is_complete()
    }

    #[test]
    fn agrees_with_the_parser() {
        for text in [
            "1",
            "-0",
            "0",
            "01",
            "1.5e-3",
            "1e",
            "-",
            "",
            " ",
            " 1 ",
            "1 2",
            "true",
            "tru",
            "truee",
            "null",
            "\"a\\n\\u00e9\"",
            "\"a",
            "[]",
            "[1,]",
            "[1,2]",
            "[1 2]",
            "{}",
            "{\"a\":1}",
            "{\"a\":1,}",
            "{\"a\"}",
            "{\"a\":[{\"b\":null}]}",
            "]",
            "}",
            "[}",
            "{]",
            "1}",
            "1,\"b\":2",
            "\"a\"b",
            "[1],",
            "{\"a\":1}}",
            "1.",
            ".5",
            "nan",
            "\u{a0}1",
            "\"\\ud83c\\udf0a\"",
            "\"\\ud83c\"",
            "\"\\ud83c\\u0041\"",
            "\"\\udf0a\"",
            "1e400",
            "[1e400]",
            "-1e-400",
        ] {
            assert_eq!(accepts(text), parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn reports_the_offending_byte() {
        let mut validator = Validator::new();
        assert_eq!(validator.feed(b"12"), Ok(()));
        assert_eq!(validator.feed(b"3, x"), Err(ValidatorError { offset: 3 }));
    }

    #[test]
    fn depth_is_limited() {
        let mut validator = Validator::new();
        assert!(validator.feed("[".repeat(10_000).as_bytes()).is_err());
    }
}
