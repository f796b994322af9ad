//! The input of a custom tool, taken out of the JSON that the model writes around it.

/// What the model's arguments begin with when the tool has the one parameter `input`.
const PREFIX: &str = "{\"input\": \"";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Prefix,
    Text,
    /// Behind a backslash.
    Escape,
    /// In the digits of `\u`.
    Unicode {
        left: u8,
        code: u32,
    },
    Behind,
    /// The arguments have another form: they are the input as they stand.
    Verbatim,
}

/// Unwraps argument text piece by piece.
#[derive(Debug, Clone)]
pub(crate) struct CustomInput {
    place: Place,
    held: String,
    high_surrogate: Option<u32>,
    /// The whole input so far.
    pub text: String,
}

impl CustomInput {
    pub fn new() -> Self {
        CustomInput {
            place: Place::Prefix,
            held: String::new(),
            high_surrogate: None,
            text: String::new(),
        }
    }

    /// Takes argument text, gives input text.
    pub fn feed(&mut self, piece: &str) -> String {
        let mut out = String::new();
        match self.place {
            Place::Verbatim => out.push_str(piece),
            Place::Prefix => {
                self.held.push_str(piece);
                if let Some(rest) = self.held.strip_prefix(PREFIX) {
                    let rest = rest.to_owned();
                    self.held.clear();
                    self.place = Place::Text;
                    self.unescape(&rest, &mut out);
                } else if !PREFIX.starts_with(self.held.as_str()) {
                    self.place = Place::Verbatim;
                    out = std::mem::take(&mut self.held);
                }
            }
            _ => self.unescape(piece, &mut out),
        }
        self.text.push_str(&out);
        out
    }

    /// Gives what was held for the prefix.
    pub fn finish(&mut self) -> String {
        let out = std::mem::take(&mut self.held);
        self.text.push_str(&out);
        out
    }

    fn unescape(&mut self, piece: &str, out: &mut String) {
        for character in piece.chars() {
            self.place = match (self.place, character) {
                (Place::Text, '"') => Place::Behind,
                (Place::Text, '\\') => Place::Escape,
                (Place::Text, character) => {
                    out.push(character);
                    Place::Text
                }
                (Place::Escape, 'u') => Place::Unicode { left: 4, code: 0 },
                (Place::Escape, letter) => {
                    out.push(match letter {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        'b' => '\u{8}',
                        'f' => '\u{c}',
                        other => other,
                    });
                    Place::Text
                }
                (Place::Unicode { left, code }, digit) => {
                    let code = code << 4 | digit.to_digit(16).unwrap_or(0);
                    if left > 1 {
                        Place::Unicode {
                            left: left - 1,
                            code,
                        }
                    } else {
                        self.push_code(code, out);
                        Place::Text
                    }
                }
                (place, _) => place,
            };
        }
    }

    fn push_code(&mut self, code: u32, out: &mut String) {
        let high = self.high_surrogate.take();
        match code {
            0xd800..=0xdbff => self.high_surrogate = Some(code),
            0xdc00..=0xdfff => {
                let joined = high.map(|high| 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00));
                out.push(joined.and_then(char::from_u32).unwrap_or('\u{fffd}'));
            }
            code => out.push(char::from_u32(code).unwrap_or('\u{fffd}')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unwrap(pieces: &[&str]) -> String {
        let mut input = CustomInput::new();
        for piece in pieces {
            input.feed(piece);
        }
        input.finish();
        input.text
    }

    #[test]
    fn unwraps_the_input_parameter() {
        assert_eq!(
            unwrap(&["{", "\"input\"", ": ", "\"", "a\\\"b\\n", "\"", "}"]),
            "a\"b\n"
        );
        assert_eq!(
            unwrap(&["{\"input\": \"\\ud8", "3c\\udf0a\"", ", \"z\": 1}"]),
            "🌊"
        );
    }

    #[test]
    fn leaves_other_arguments_alone() {
        assert_eq!(unwrap(&["{", "\"other\"", ": 1}"]), "{\"other\": 1}");
        assert_eq!(unwrap(&["{}"]), "{}");
        assert_eq!(unwrap(&["{", "\"inp"]), "{\"inp");
    }
}
