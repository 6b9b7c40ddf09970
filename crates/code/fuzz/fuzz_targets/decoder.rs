#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    holdfast_code::fuzz::decode_hostile(bytes);
});
