//! Examples of the Rust API, one program each: `sender`, `receiver` and `forwarder` in `src/bin`.
#![forbid(unsafe_code)]
