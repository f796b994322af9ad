//! Bodies of Messages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| recipe_checks::check_messages_request(body));
