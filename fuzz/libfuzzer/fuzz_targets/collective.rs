#![no_main]

gradtide_libfuzzer::fuzzed!("collective");
