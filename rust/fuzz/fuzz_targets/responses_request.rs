//! Bodies of Responses.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| recipe_checks::check_responses_request(body));
