//! JSON texts.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| recipe_checks::check_json(bytes));
