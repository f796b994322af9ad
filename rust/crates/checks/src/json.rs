//! The JSON parser, its writer and the incremental validator.

use recipe::json::{parse_bytes, write_compact, Validator};

/// The parser and the validator accept the same texts, and a value survives being written and read.
pub fn check_json(bytes: &[u8]) {
    let parsed = parse_bytes(bytes);
    let mut validator = Validator::new();
    let accepted = validator.feed(bytes).is_ok() && validator.is_complete();
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert_eq!(
            parsed.is_ok(),
            accepted,
            "parser and validator disagree about {text:?}"
        );
    }
    if let Ok(value) = parsed {
        let mut written = String::new();
        write_compact(&mut written, &value);
        match parse_bytes(written.as_bytes()) {
            Ok(again) => assert_eq!(again, value, "{written:?}"),
            Err(error) => panic!("what was written cannot be read: {error}: {written:?}"),
        }
    }
}
