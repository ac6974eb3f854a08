//! The command-line programs: their errors, `lb` and `unetmap doctor`.
#![forbid(unsafe_code)]

mod doctor;
mod errors;
mod lb;
