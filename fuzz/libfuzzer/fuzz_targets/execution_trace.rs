#![no_main]

gradtide_libfuzzer::fuzzed!("execution_trace");
