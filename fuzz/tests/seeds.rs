//! Every target on its seeds and on some mutants of them. `make fuzz` runs each target for ten minutes, guided by
//! coverage.

use gradtide_fuzz::{TARGETS, Target, json, target};
use gradtide_net::Seed;
use gradtide_train::spec::Spec;
use std::fs;
use std::path::{Path, PathBuf};

/// Number of mutants of each seed.
const MUTANTS: u64 = 4;

fn seeds(target: Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(&path).expect("a seed can be read"))).collect()
}

/// Returns the data with random changes of single bytes.
fn changed(data: &[u8], seed: u64) -> Vec<u8> {
    let mut draw = Seed(seed).stream("bytes");
    let mut data = data.to_vec();
    for _ in 0..=draw.below(4) {
        let place = draw.below(data.len() as u64 + 1) as usize;
        match draw.below(3) {
            0 => data.truncate(place.max(1)),
            1 => data.insert(place, draw.word() as u8),
            _ if place < data.len() => data[place] ^= 1 << draw.below(8),
            _ => {}
        }
    }
    data
}

fn check(name: &str) {
    let target = target(name);
    let seeds = seeds(target);
    assert!(!seeds.is_empty());
    for (index, (path, data)) in (0..).zip(&seeds) {
        eprintln!("{}", path.display());
        (target.check)(data);
        for mutant in index * MUTANTS..(index + 1) * MUTANTS {
            let other = &seeds[Seed(mutant).stream("other").below(seeds.len() as u64) as usize].1;
            let mutants = if target.is_json {
                [json::mutated(data, usize::MAX, mutant), json::crossed(data, other, usize::MAX, mutant)]
            } else {
                [Some(changed(data, mutant)), None]
            };
            mutants.iter().flatten().for_each(|mutant| (target.check)(mutant));
        }
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_target_has_a_test_and_a_binary() {
            let names = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), names);
            for name in names {
                let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("libfuzzer/fuzz_targets/{name}.rs"));
                let source = fs::read_to_string(&path).expect("a target has a binary");
                assert!(source.contains(&format!("\"{name}\"")), "{}", path.display());
            }
        }
    };
}

tests! { kineto execution_trace chakra trace_dag order run collective maxmin }

/// The seeds must follow changes of the scenario's fields. Otherwise, the target rejects all of them and checks
/// nothing.
#[test]
fn seeds_of_runs_are_scenarios() {
    for (path, data) in seeds(target("run")) {
        if let Err(error) = serde_json::from_slice::<Spec>(&data) {
            panic!("{}: {error}", path.display());
        }
    }
}
