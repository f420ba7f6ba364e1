#![no_main]

gradtide_libfuzzer::fuzzed!("trace_dag");
