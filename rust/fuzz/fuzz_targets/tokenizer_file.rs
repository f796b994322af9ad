//! Tokenizer files.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| recipe_checks::check_tokenizer_file(text));
