//! Joins a target of `gradtide_fuzz` with libFuzzer.

pub use libfuzzer_sys;

/// Creates the libFuzzer binary of a target. JSON is mutated as a document in three of four cases.
#[macro_export]
macro_rules! fuzzed {
    ($name:literal) => {
        use std::sync::LazyLock;

        static TARGET: LazyLock<gradtide_fuzz::Target> = LazyLock::new(|| gradtide_fuzz::target($name));

        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.check)(data));

        $crate::libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            let mutant = gradtide_fuzz::json::mutated(&data[..size], max_size, seed.into());
            match mutant.filter(|_| TARGET.is_json && seed % 4 > 0) {
                Some(mutant) => $crate::put(data, &mutant),
                None => $crate::libfuzzer_sys::fuzzer_mutate(data, size, max_size),
            }
        });

        $crate::libfuzzer_sys::fuzz_crossover!(|one: &[u8], other: &[u8], out: &mut [u8], seed: u32| {
            let mutant = gradtide_fuzz::json::crossed(one, other, out.len(), seed.into());
            match mutant.filter(|_| TARGET.is_json) {
                Some(mutant) => $crate::put(out, &mutant),
                None => $crate::spliced(one, other, out, seed),
            }
        });
    };
}

/// Copies a mutant to libFuzzer's buffer, and returns its length.
pub fn put(out: &mut [u8], mutant: &[u8]) -> usize {
    out[..mutant.len()].copy_from_slice(mutant);
    mutant.len()
}

/// Joins the beginning of one input and the end of another in `out`, and returns the length.
pub fn spliced(one: &[u8], other: &[u8], out: &mut [u8], seed: u32) -> usize {
    let begin = &one[..seed as usize % (one.len() + 1)];
    let end = &other[(seed >> 16) as usize % (other.len() + 1)..];
    let mut size = 0;
    for (place, byte) in out.iter_mut().zip(begin.iter().chain(end)) {
        *place = *byte;
        size += 1;
    }
    size
}
