// SPDX-License-Identifier: BSD-2-Clause
//! The command `graph`: rules as a chain, with the packets that each has seen and what becomes of them.
//!
//! ```text
//!        350  00010 count udp from any to any
//!              |
//!        100  00020 deny udp from any to any 22 ---> dropped
//!              |
//! ```

use std::fmt::Write as _;

use super::Config;
use crate::rule::{Action, Rule, Target};

impl Config {
    /// Writes the rules that are evaluated as a chain.
    pub(super) fn graph(&mut self, output: &mut String) {
        self.sort();
        let rows: Vec<_> = self.rules.iter().filter(|rule| self.is_enabled(rule.set)).collect();
        let width = rows.iter().map(|rule| rule.counters.get().packets.to_string().len()).max().unwrap_or(1);
        for (at, rule) in rows.iter().enumerate() {
            let _ = write!(output, "{:>width$}  {:05} {}", rule.counters.get().packets, rule.number, rule.text);
            let outcome = rule.outcome();
            if outcome != NEXT {
                let _ = write!(output, " ---> {outcome}");
            }
            output.push('\n');
            if at + 1 < rows.len() {
                let _ = writeln!(output, "{:width$}    |", "");
            }
        }
    }
}

/// The edge from a rule that only counts to the next one.
const NEXT: &str = "next";

impl Rule {
    /// Returns what becomes of a packet that matches, in words.
    pub fn outcome(&self) -> String {
        let number = |target: Target| match target {
            Target::Number(number) => number.to_string(),
            Target::TableArg => "of the table".into(),
        };
        let rule = |target: Target| match target {
            Target::Number(number) => format!("{number:05}"),
            Target::TableArg => "the table's rule".into(),
        };
        match self.action {
            Action::Allow => "passed".into(),
            Action::Deny => "dropped".into(),
            Action::Count => NEXT.into(),
            Action::SkipTo(target) => rule(target),
            Action::Call(target) => format!("{}, and back", rule(target)),
            Action::Return => "the caller".into(),
            Action::CheckState => "the state's rule".into(),
            Action::Unreach(_) | Action::Unreach6(_) => "dropped, ICMP error".into(),
            Action::Reset | Action::Reset6 => "dropped, TCP reset".into(),
            Action::Pipe(target) => format!("pipe {}, passed", number(target)),
            Action::Queue(target) => format!("queue {}, passed", number(target)),
            Action::Nat(target) => format!("nat {}, passed", number(target)),
            Action::Tee(target) => format!("a copy to port {}, next", number(target)),
            Action::SetDscp(Target::Number(dscp)) => format!("DSCP {dscp}, next"),
            Action::SetDscp(Target::TableArg) => "DSCP of the table, next".into(),
            Action::SetMss(mss) => format!("MSS at most {mss}, next"),
            Action::SynProxy { .. } => "passed, if its client exists".into(),
        }
    }
}
