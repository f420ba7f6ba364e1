//! CPU time and memory of this process, as reported by the kernel. Several examples use this module.

use std::time::Instant;

/// Returns the CPU seconds of this process, in steps of 10 ms, or the elapsed time if the kernel does not report them.
pub fn cpu_seconds(start: Instant) -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return start.elapsed().as_secs_f64() };
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    ticks as f64 / 100.0
}

/// Returns the peak memory of the process in MB, or 0 if the kernel does not report it.
pub fn peak_megabytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1.024e-3
}
