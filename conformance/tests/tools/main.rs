//! The command-line programs: their errors, `lb`, `unetmap doctor` and `unetmap metrics`.
#![forbid(unsafe_code)]

mod doctor;
mod errors;
mod lb;
mod metrics;
