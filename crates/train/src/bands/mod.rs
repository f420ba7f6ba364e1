//! In which band each worker of a job sends what it sends next.

pub mod foresight;
pub mod priority;
