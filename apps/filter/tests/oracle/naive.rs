// SPDX-License-Identifier: BSD-2-Clause
//! The naive evaluator: rules one after the other, states in a list.

use std::net::IpAddr;

use unetmap_filter::Verdict;

use crate::packet::{Fields, Ip};
use crate::rules::{Do, Keep, NaiveRule, View};

type End = (IpAddr, u16);

struct State {
    proto: u8,
    first: End,
    second: End,
    name: usize,
    /// Place of the rule.
    rule: usize,
    limited: Option<[bool; 4]>,
    answered: bool,
    flags: [u8; 2],
    highest: [Option<u32>; 2],
    acknowledged: [bool; 2],
    expires: u64,
}

pub(crate) struct Naive {
    /// In order of evaluation, without the default rule.
    pub(crate) rules: Vec<NaiveRule>,
    pub(crate) disabled: Vec<u8>,
    pub(crate) tables: Vec<Vec<(IpAddr, u8, u32)>>,
    /// In the order in which they were made.
    states: Vec<State>,
    pub(crate) max_states: usize,
}

fn ends(ip: &Ip) -> [End; 2] {
    let (src, dst) = ip.ports.unwrap_or_default();
    [(ip.src, src), (ip.dst, dst)]
}

impl State {
    /// 0 for packets in the direction of the first, 1 for the others.
    fn direction(&self, ip: &Ip) -> Option<usize> {
        let [src, dst] = ends(ip);
        if ip.proto != self.proto {
            None
        } else if (src, dst) == (self.first, self.second) {
            Some(0)
        } else {
            ((dst, src) == (self.first, self.second)).then_some(1)
        }
    }

    fn renew(&mut self, ip: &Ip, direction: usize, now: u64) {
        let lifetime = match ip.proto {
            6 => {
                let (flags, ack) = ip.tcp.as_ref().map_or((0, 0), |tcp| (tcp.flags, tcp.ack));
                self.flags[direction] |= flags & 7;
                let [there, back] = self.flags;
                let all = there | back;
                if all & 4 != 0 {
                    1
                } else if there & 2 != 0 && back & 2 == 0 && all & 1 == 0 {
                    20
                } else if there & 2 != 0 && back & 2 != 0 && there & back & 1 != 0 {
                    1
                } else if there & 2 != 0 && back & 2 != 0 {
                    let newer = self.highest[direction].is_none_or(|before| ack.wrapping_sub(before) < 1 << 31);
                    if flags & 16 != 0 && newer {
                        self.highest[direction] = Some(ack);
                        self.acknowledged[direction] = true;
                    }
                    if self.acknowledged != [true; 2] {
                        return;
                    }
                    self.acknowledged = [false; 2];
                    300
                } else {
                    1
                }
            }
            17 | 136 => 10,
            _ => 5,
        };
        self.expires = now + lifetime * 1000;
    }
}

impl Naive {
    pub(crate) fn new(
        rules: Vec<NaiveRule>,
        disabled: Vec<u8>,
        tables: Vec<Vec<(IpAddr, u8, u32)>>,
        max_states: usize,
    ) -> Naive {
        let mut rules = rules;
        rules.sort_by_key(|rule| rule.number);
        Naive { rules, disabled, tables, states: Vec::new(), max_states }
    }

    /// Returns the place of the rule of the packet's state.
    fn look_up(&mut self, ip: &Ip, name: usize, now: u64) -> Option<usize> {
        let state = self.states.iter_mut().find(|s| s.name == name && s.direction(ip).is_some())?;
        let direction = state.direction(ip)?;
        state.answered |= direction == 1;
        state.renew(ip, direction, now);
        Some(state.rule)
    }

    fn install(&mut self, ip: &Ip, rule: usize, keep: Keep, now: u64) -> bool {
        if let Some(at) = self.states.iter().position(|s| s.name == keep.name && s.direction(ip).is_some()) {
            if self.states[at].rule == rule {
                return true;
            }
            self.states.remove(at);
        }
        let [first, second] = ends(ip);
        if let Some((fields, count)) = keep.limit {
            let pick = |first: End, second: End| {
                let address = |on: bool, end: End| on.then_some(end.0);
                let port = |on: bool, end: End| on.then_some(end.1);
                (address(fields[0], first), port(fields[1], first), address(fields[2], second), port(fields[3], second))
            };
            let wanted = pick(first, second);
            let is_same = |s: &&State| {
                let same_family = s.first.0.is_ipv4() == ip.src.is_ipv4();
                s.rule == rule && s.proto == ip.proto && same_family && pick(s.first, s.second) == wanted
            };
            if self.states.iter().filter(|s| s.limited == Some(fields)).filter(is_same).count() >= count {
                return false;
            }
        }
        if self.states.len() == self.max_states {
            match self.states.iter().position(|s| !s.answered) {
                Some(oldest) => drop(self.states.remove(oldest)),
                None => return false,
            }
        }
        let mut state = State {
            proto: ip.proto,
            first,
            second,
            name: keep.name,
            rule,
            limited: keep.limit.map(|(fields, _)| fields),
            answered: false,
            flags: [0; 2],
            highest: [None; 2],
            acknowledged: [false; 2],
            expires: now,
        };
        state.renew(ip, 0, now);
        self.states.push(state);
        true
    }

    /// Evaluates a valid packet of `bytes` bytes at `now` milliseconds.
    pub(crate) fn evaluate(&mut self, fields: &Fields, out: bool, bytes: u64, now: u64) -> Verdict {
        self.states.retain(|state| state.expires > now);
        let mut stack: Vec<u16> = Vec::new();
        let mut tags: Vec<u32> = Vec::new();
        let mut tos = fields.ip.as_ref().map_or(0, |ip| ip.tos);
        let (mut at, mut asked, mut calls, mut found) = (0, None, 0, false);
        while at < self.rules.len() {
            let mut rule = at;
            at += 1;
            if self.disabled.contains(&self.rules[rule].set) {
                continue;
            }
            let keep = self.rules[rule].keep;
            let mut from_state = false;
            let mut argument = 0;
            if let (Some(keep), Some(ip)) = (keep.filter(|keep| keep.probe), &fields.ip) {
                if asked != Some(keep.name) && !found {
                    asked = Some(keep.name);
                    if let Some(parent) = self.look_up(ip, keep.name, now) {
                        (rule, from_state, found) = (parent, true, true);
                        at = parent + 1;
                    }
                }
            } else if let Some(keep) = keep.filter(|keep| keep.probe) {
                asked = Some(keep.name);
            }
            if !from_state {
                if matches!(self.rules[rule].action, Do::CheckState) || self.rules[rule].never {
                    continue;
                }
                if !self.matches(rule, fields, (out, &tags, tos), &mut argument) {
                    continue;
                }
                if let (Some(keep), Some(ip)) = (keep, &fields.ip)
                    && !self.install(ip, rule, keep, now)
                {
                    return Verdict::Deny;
                }
                if keep.is_some_and(|keep| keep.defer) {
                    self.rules[rule].packets += 1;
                    self.rules[rule].bytes += bytes;
                    continue;
                }
            }
            let this = &mut self.rules[rule];
            this.packets += 1;
            this.bytes += bytes;
            let (number, action) = (this.number, this.action);
            if let Some((set, tag)) = this.tag {
                let tag = tag.unwrap_or(argument);
                tags.retain(|&other| other != tag);
                if set && tag > 0 {
                    tags.push(tag);
                }
            }
            let first_at_least = |rules: &[NaiveRule], n: u32| {
                rules.iter().position(|rule| u32::from(rule.number) >= n).unwrap_or(rules.len())
            };
            match action {
                Do::Allow => return Verdict::Accept,
                Do::Deny => return Verdict::Deny,
                Do::Reject => return Verdict::Unreach(1),
                Do::Unreach6 => return Verdict::Unreach6(4),
                Do::Reset => return Verdict::Reset,
                Do::Count | Do::CheckState => {}
                Do::Dscp(given) => {
                    let dscp = given.map_or(argument, u32::from);
                    if dscp < 64 {
                        tos = (dscp as u8) << 2 | tos & 3;
                    }
                }
                Do::SkipTo(to) => {
                    let to = to.map_or(argument, u32::from).max(u32::from(number) + 1);
                    at = first_at_least(&self.rules, to);
                }
                Do::Call(to) => {
                    if stack.len() < 16 && calls < 256 {
                        calls += 1;
                        stack.push(number);
                        at = first_at_least(&self.rules, to.map_or(argument, u32::from));
                    }
                }
                Do::Return => {
                    if let Some(caller) = stack.pop() {
                        at = first_at_least(&self.rules, u32::from(caller) + 1);
                    }
                }
            }
        }
        Verdict::Deny
    }

    fn matches(&self, rule: usize, fields: &Fields, (out, tags, tos): (bool, &[u32], u8), argument: &mut u32) -> bool {
        let view = View { fields, out, tags, tos, tables: &self.tables };
        self.rules[rule].groups.iter().all(|group| {
            group.iter().any(|(negated, check)| {
                let (matches, value) = check(&view);
                *argument = value.unwrap_or(*argument);
                matches != *negated
            })
        })
    }
}
