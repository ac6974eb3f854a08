// SPDX-License-Identifier: BSD-2-Clause
//! Packet filter rules in ipfw's language: a rule set is parsed, compiled, and evaluated without allocation, lock or
//! system call.
//!
//! ```text
//! text --parse--> Config --compile--> Ruleset (shared by threads, immutable)
//! frame --Headers::parse--> Engine::evaluate (one per thread: states, counters) --> Verdict
//! ```
//! A change makes a new `Ruleset`, which threads take between two batches. Rules that stay keep their counters and
//! states.
#![forbid(unsafe_code)]

mod buckets;
mod change;
mod config;
mod constraint;
mod counters;
mod engine;
mod handshake;
mod index;
mod limits;
mod matcher;
mod memo;
mod nat;
mod packet;
mod parse;
mod reply;
mod rule;
mod ruleset;
mod shared;
mod state;
mod states;
mod syn_proxy;
mod table;
mod tuning;
mod verdict;

pub use config::Config;
pub use counters::{Counts, RuleCounters};
pub use engine::{Direction, Engine, Now, SharedTables};
pub use nat::{NatChange, NatCounts, NatEvent, Translated};
pub use packet::{Family, HEADER_BYTES, Headers, Malformed, proto, tcp};
pub use parse::words::{SyntaxError, text};
pub use reply::{MAX_REPLY, checksum, reply, too_big};
pub use rule::{DEFAULT_RULE, Rule, RuleId};
pub use ruleset::Ruleset;
pub use shared::MaybeShared;
pub use state::{StateCounts, StateInfo};
pub use states::States;
pub use syn_proxy::ProxyCounts;
pub use table::{Prefix, Table};
pub use tuning::{EXAMINED_PER_CALL, FETCH_STATES, SWEEP_PER_BATCH};
pub use verdict::{Change, Effect, Verdict};
