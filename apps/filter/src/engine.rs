// SPDX-License-Identifier: BSD-2-Clause
//! Evaluates packets against a rule set.

use std::hash::Hasher as _;

use crate::change::with_dscp;
use crate::matcher::{Subject, matches};
use crate::memo::{Key, Memo};
use crate::nat::{NatCounts, NatEvent, NatTable, Translated};
use crate::packet::Headers;
use crate::reply::MAX_REPLY;
use crate::rule::{Action, Rule, RuleId, StateOption, Tag, Target};
use crate::ruleset::Ruleset;
use crate::shared::MaybeShared;
use crate::state::{StateCounts, StateInfo};
use crate::states::{States, Walk};
use crate::syn_proxy::{self, Cookies, ProxyCounts};
use crate::table::AddressHasher;
use crate::tuning::{CALL_DEPTH, MAX_CALLS, MAX_TAGS};
use crate::verdict::{Change, Effect, Verdict};

/// The way of a packet between the two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Direction {
    /// From the first port to the second.
    Out = 1,
    /// From the second port to the first.
    In = 2,
}

/// The time of a batch of packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Milliseconds of a clock that never goes back.
    pub millis: u64,
    /// Seconds since the epoch.
    pub seconds: u64,
}

/// The state of one thread that evaluates packets.
#[derive(Debug)]
pub struct Engine {
    thread: usize,
    /// Threads that share the tables.
    threads: usize,
    /// Number of the next packet, which with `seed` decides about `prob`.
    packet: u64,
    seed: u64,
    /// States of flows.
    pub states: States,
    /// Translated connections.
    nat: MaybeShared<NatTable>,
    walk: Walk,
    cookies: Cookies,
    /// Counts of handshakes.
    pub handshakes: ProxyCounts,
    memo: Memo,
}

/// Tables that threads share, for another thread that reads their counts.
#[derive(Debug)]
pub struct SharedTables {
    states: States,
    nat: MaybeShared<NatTable>,
}

impl SharedTables {
    /// Returns the counts of states and of translated connections.
    pub fn counts(&self) -> (StateCounts, NatCounts) {
        (self.states.counts(), self.nat.read(NatTable::counts))
    }

    /// Returns the states that have not expired.
    pub fn states(&self, now: u64) -> Vec<StateInfo> {
        self.states.list(now)
    }
}

/// The next step of evaluation after a rule.
enum Next {
    Done(Verdict),
    /// The rule at this place or after it.
    Rule(usize),
}

/// The state of a packet's evaluation.
struct Traversal {
    calls: [u16; CALL_DEPTH],
    depth: usize,
    called: u32,
    argument: u32,
    /// The packet's tags; the first `tagged` are used.
    tags: [u16; MAX_TAGS],
    tagged: usize,
    /// Type of service, as rules have left it.
    tos: u8,
}

impl Engine {
    /// Makes the engine of thread number `thread`, with room for `states` states and as many translated connections.
    /// Equal seeds draw equal numbers for `prob`; a sender who knows it can make lookups of states slow.
    pub fn new(thread: usize, states: usize, seed: u64) -> Engine {
        let mut engine = Engine::for_threads(1, states, seed).swap_remove(0);
        engine.thread = thread;
        engine
    }

    /// Makes the engines of `n` threads, which share states and translated connections, as many as [`Engine::new`]
    /// says: a flow has the same state whichever threads its packets come to. The engine of one thread locks nothing.
    pub fn for_threads(n: usize, states: usize, seed: u64) -> Vec<Engine> {
        let cookies = Cookies::new();
        let tables = States::for_threads(n, states, seed)
            .into_iter()
            .zip(MaybeShared::for_threads(n, NatTable::new(states, seed)));
        let engine = |(thread, (states, nat)): (usize, (States, MaybeShared<NatTable>))| Engine {
            thread,
            threads: n,
            packet: 0,
            // Each thread draws numbers of its own.
            seed: seed.wrapping_add(thread as u64),
            states,
            nat,
            walk: Walk::default(),
            cookies: cookies.clone(),
            handshakes: ProxyCounts::default(),
            memo: Memo::new(),
        };
        tables.enumerate().map(engine).collect()
    }

    /// Returns the number of this engine's thread.
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// Returns a handle of the tables that threads share; `None` if they are this thread's own.
    pub fn shared_tables(&self) -> Option<SharedTables> {
        let states = self.states.handle()?;
        let MaybeShared::All(nat) = &self.nat else { return None };
        Some(SharedTables { states, nat: MaybeShared::All(std::sync::Arc::clone(nat)) })
    }

    /// Returns the counts of translated connections.
    pub fn nat_counts(&self) -> NatCounts {
        self.nat.read(NatTable::counts)
    }

    /// Returns the number of translated connections that have not expired.
    pub fn live_connections(&self, now: u64) -> usize {
        self.nat.read(|nat| nat.live(now))
    }

    /// Examines `states` states and some translated connections for expired ones, and removes these.
    #[inline]
    pub fn sweep(&mut self, states: usize, now: u64) {
        self.states.sweep(states, now);
        self.nat.try_with(|nat| nat.sweep(now));
    }

    /// Begins a log of the connections that NAT makes and ends.
    pub fn log_nat(&mut self) {
        self.nat.with(NatTable::log);
    }

    /// Moves the events of the log, unless another thread uses the table.
    #[inline]
    pub fn take_nat_events(&mut self, to: &mut Vec<NatEvent>) {
        self.nat.try_with(|nat| nat.take_events(to));
    }

    /// Ends translated connections, some at a time, and moves the events of the log. Returns whether there may be
    /// other connections.
    pub fn end_nat(&mut self, now: u64, to: &mut Vec<NatEvent>) -> bool {
        self.nat.with(|nat| nat.end_some(now, to))
    }

    /// Examines the next [`EXAMINED_PER_CALL`](crate::EXAMINED_PER_CALL) states, at most, of a walk through all that
    /// begins each 5 s: removes expired ones, and asks both ends of TCP connections whose states expire within 20 s.
    /// `send` gets the frames that the firewall sends, and the direction of each; `millis` is as of [`Now`].
    #[inline]
    pub fn ask_idle(&mut self, set: &Ruleset, millis: u64, mut send: impl FnMut(Direction, &[u8; MAX_REPLY], usize)) {
        let passes = |rule: RuleId| set.find(rule).is_some_and(|at| set.keepalive && set.rules[at].action.may_pass());
        self.states.ask_idle(&mut self.walk, (self.thread, self.threads), millis, passes, |is_out, frame, len| {
            send(if is_out { Direction::Out } else { Direction::In }, frame, len);
        });
    }

    /// Whether there is something to do for [`Engine::ask_idle`], now or later.
    #[inline]
    pub fn may_ask_idle(&self) -> bool {
        self.walk.is_going_on || self.states.may_have_some()
    }

    /// Whether a walk through the states is under way.
    pub fn is_asking_idle(&self) -> bool {
        self.walk.is_going_on
    }

    /// Returns the memory of the tables that packets read at random places, for which huge pages are worth it: start,
    /// bytes.
    pub fn tables(&self) -> impl Iterator<Item = (*const u8, usize)> {
        self.states.memory().into_iter().chain(self.nat.read(NatTable::memory))
    }

    /// Handles a segment that [`Verdict::SynProxy`] is about: may change its first bytes, which `headers` were parsed
    /// from. Returns whether it passes. `send` gets the frames that the firewall sends, and whether each goes back to
    /// where the segment came from.
    pub fn proxy(
        &mut self,
        set: &Ruleset,
        rule: u32,
        headers: &Headers,
        bytes: &mut [u8],
        now: Now,
        send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> bool {
        let Some(rule) = set.rules.get(rule as usize) else { return false };
        let (cookies, counts) = (&self.cookies, &mut self.handshakes);
        let step = self
            .states
            .install(headers, now.millis, |states| states.handshake(headers, bytes, rule, cookies, counts, now.millis));
        let Some(step) = step else { return false };
        syn_proxy::perform(step, headers, bytes, send)
    }

    /// Translates a packet that [`Verdict::Nat`] is about: changes its first bytes, which `headers` were parsed from. A
    /// packet of an instance that does not exist is dropped.
    #[inline]
    pub fn translate(
        &mut self,
        set: &Ruleset,
        number: u16,
        direction: Direction,
        headers: &Headers,
        bytes: &mut [u8],
        now: Now,
    ) -> Translated {
        let Some(nat) = set.nat(number) else { return Translated::Drop };
        self.nat.with(|table| table.translate(nat, direction == Direction::Out, headers, bytes, now.millis))
    }

    /// Returns the verdict about all packets, if the rule set needs to look at none. They are counted by
    /// [`Engine::count_always`].
    #[inline]
    pub fn always(set: &Ruleset) -> Option<Verdict> {
        let rule = &set.rules[set.always?];
        Some(if rule.action == Action::Allow { Verdict::Accept } else { Verdict::Deny })
    }

    /// Counts packets that [`Engine::always`] has a verdict about.
    #[inline]
    pub fn count_always(&self, set: &Ruleset, packets: u64, bytes: u64, now: Now) {
        if let Some(at) = set.always {
            set.rules[at].counters.add(self.thread, packets, bytes, now.seconds);
        }
    }

    /// Fetches the states of packets that will be evaluated next, of [`FETCH_STATES`](crate::FETCH_STATES) at most.
    /// Changes no verdict.
    #[inline]
    pub fn fetch<'h>(&self, set: &Ruleset, packets: impl Iterator<Item = &'h Headers>) {
        if !set.probes.is_empty() {
            self.states.fetch(packets);
        }
    }

    /// Returns the verdict about a frame of `len` bytes that begins with `bytes`, without parsing it, and counts the
    /// frame; `None` if its flow's verdict is not remembered, or needs the headers, so that [`Engine::evaluate`] is
    /// called.
    #[inline(always)]
    pub fn recall(
        &mut self,
        set: &Ruleset,
        bytes: &[u8],
        len: usize,
        direction: Direction,
        now: Now,
    ) -> Option<Verdict> {
        // Before the key is read: the verdicts of too many flows are not remembered.
        if !set.is_remembered || !self.memo.has_verdicts(set.identity) {
            return None;
        }
        let (at, verdict) = self.memo.recall(set.identity, &Key::of_bytes(bytes, len, direction as u8)?)?;
        self.packet = self.packet.wrapping_add(1);
        set.rules[at].counters.add(self.thread, 1, len as u64, now.seconds);
        Some(verdict)
    }

    /// Evaluates one packet of `bytes` bytes. `effect` is called for each rule that logs or copies it.
    pub fn evaluate(
        &mut self,
        set: &Ruleset,
        headers: &Headers,
        direction: Direction,
        bytes: u64,
        now: Now,
        effect: impl FnMut(Effect<'_>),
    ) -> Verdict {
        self.packet = self.packet.wrapping_add(1);
        let key = (set.is_remembered && self.memo.is_asked(set.identity)).then(|| Key::new(headers, direction as u8));
        if let Some((at, verdict)) = key.as_ref().and_then(|key| self.memo.get(key)) {
            set.rules[at].counters.add(self.thread, 1, bytes, now.seconds);
            return verdict;
        }
        let (verdict, decider) = self.search(set, headers, direction, bytes, now, effect);
        if let (Some(key), Some(at)) = (key, decider) {
            self.memo.put(key, at, verdict);
        }
        verdict
    }

    /// Evaluates a packet. Returns the place of the rule that decided as well, if packets with the same [`Key`] get the
    /// same verdict and count for that rule alone.
    #[inline(always)]
    fn search(
        &mut self,
        set: &Ruleset,
        headers: &Headers,
        direction: Direction,
        bytes: u64,
        now: Now,
        mut effect: impl FnMut(Effect<'_>),
    ) -> (Verdict, Option<usize>) {
        let mut search = set.index.search(headers, direction as u8);
        let mut way = Traversal { tos: headers.tos, ..Traversal::BEGIN };
        let mut asked = None;
        let mut probe = 0;
        let mut has_state = false;
        let mut is_plain = set.is_remembered;
        // A state that the first rule asks for comes before all rules: for packets that have one nothing is searched.
        let first_asks = set.probes.first().is_some_and(|due| due.rule == 0);
        let mut candidate = if first_asks { Some(0) } else { search.next() };
        loop {
            let (at, is_state) = match set.probes.get(probe).filter(|due| candidate.is_none_or(|at| due.rule <= at)) {
                None => (candidate, false),
                Some(due) => {
                    let found = self.look_up(set, headers, direction, due.name, bytes, now.millis);
                    let is_first = asked.replace(due.name).is_none();
                    probe = due.next_other;
                    match found {
                        None => {
                            if is_first && first_asks {
                                candidate = search.next();
                            }
                            continue;
                        }
                        // The rule's tests, and its probability, are not asked again. A packet has one state: lookups
                        // under other names could go back and forth between rules that only count.
                        found => {
                            has_state = true;
                            (found, true)
                        }
                    }
                }
            };
            let Some(at) = at else { return (Verdict::Deny, None) };
            let rule = &*set.rules[at];
            is_plain &= set.plain[at];
            way.argument = 0;
            if !is_state {
                let (tags, tos) = (&way.tags[..way.tagged], way.tos);
                let subject = Subject { headers, direction: direction as u8, tags, tos };
                let skipped = rule.probability.is_some_and(|p| self.random(rule) >= p);
                if skipped || !matches(&rule.tests, subject, &set.tables, &mut way.argument) {
                    candidate = search.next();
                    continue;
                }
                // That of a proxied connection follows once its client has proved to exist.
                if let Some(state) = rule.state.filter(|_| !matches!(rule.action, Action::SynProxy { .. })) {
                    if !self.install(rule.id, state, headers, bytes, now.millis) {
                        return (Verdict::Deny, None);
                    }
                    if state.defer {
                        rule.counters.add(self.thread, 1, bytes, now.seconds);
                        candidate = search.next();
                        continue;
                    }
                }
            }
            match self.perform(set, at, &mut way, bytes, now, &mut effect) {
                Next::Done(verdict) => return (verdict, is_plain.then_some(at)),
                Next::Rule(next) => {
                    is_plain = false;
                    if is_state || next != at + 1 {
                        search.seek(next);
                        // A call may have gone back.
                        probe = if has_state { usize::MAX } else { set.probe_after(next, asked) };
                    }
                    candidate = search.next();
                }
            }
        }
    }

    /// Returns the place of the rule of a packet's state.
    #[inline]
    fn look_up(
        &mut self,
        set: &Ruleset,
        headers: &Headers,
        direction: Direction,
        name: u16,
        bytes: u64,
        now: u64,
    ) -> Option<usize> {
        let (is_out, exists) = (direction == Direction::Out, |rule| set.find(rule).is_some());
        let found = self.states.of(headers, |states| states.lookup(headers, is_out, name, bytes, now, exists));
        set.find(found?)
    }

    /// Installs the state of a packet. Returns false if the packet must be denied.
    fn install(&mut self, rule: RuleId, state: StateOption, headers: &Headers, bytes: u64, now: u64) -> bool {
        self.states.install(headers, now, |table| table.install(headers, rule, state, bytes, now))
    }

    /// Counts and logs a packet of the rule at `at`, and performs the action.
    #[inline]
    fn perform(
        &self,
        set: &Ruleset,
        at: usize,
        way: &mut Traversal,
        bytes: u64,
        now: Now,
        effect: &mut impl FnMut(Effect<'_>),
    ) -> Next {
        let rule = &*set.rules[at];
        rule.counters.add(self.thread, 1, bytes, now.seconds);
        if rule.log.is_some_and(|logging| rule.counters.log(logging.limit)) {
            effect(Effect::Log(rule));
        }
        if let Some(tag) = rule.tag {
            way.change_tag(tag);
        }
        Next::Done(match rule.action {
            Action::Allow => Verdict::Accept,
            Action::Deny => Verdict::Deny,
            Action::Unreach(code) => Verdict::Unreach(code),
            Action::Unreach6(code) => Verdict::Unreach6(code),
            Action::Reset => Verdict::Reset,
            Action::Reset6 => Verdict::Reset6,
            Action::Pipe(target) => Verdict::Link(unetmap_shape::Target::Pipe(way.number(target) as u16)),
            Action::Queue(target) => Verdict::Link(unetmap_shape::Target::Queue(way.number(target) as u16)),
            Action::Nat(target) => Verdict::Nat(way.number(target) as u16),
            Action::SynProxy { .. } => Verdict::SynProxy(at as u32),
            Action::Tee(target) => {
                effect(Effect::Copy(way.number(target) as u16));
                return Next::Rule(at + 1);
            }
            Action::SetDscp(target) => {
                if let Some(dscp) = u8::try_from(way.number(target)).ok().filter(|&dscp| dscp < 64) {
                    way.tos = with_dscp(way.tos, dscp);
                    effect(Effect::Change(Change::Dscp(dscp)));
                }
                return Next::Rule(at + 1);
            }
            Action::SetMss(mss) => {
                effect(Effect::Change(Change::Mss(mss)));
                return Next::Rule(at + 1);
            }
            Action::Count | Action::CheckState => return Next::Rule(at + 1),
            Action::SkipTo(target) => {
                let number = way.number(target);
                return Next::Rule(set.position(number).max(set.position(u32::from(rule.number) + 1)));
            }
            Action::Call(target) => {
                if way.depth == CALL_DEPTH || way.called == MAX_CALLS {
                    return Next::Rule(at + 1);
                }
                way.calls[way.depth] = rule.number;
                way.depth += 1;
                way.called += 1;
                return Next::Rule(set.position(way.number(target)));
            }
            Action::Return => {
                if way.depth == 0 {
                    return Next::Rule(at + 1);
                }
                way.depth -= 1;
                return Next::Rule(set.position(u32::from(way.calls[way.depth]) + 1));
            }
        })
    }

    /// Returns 31 random bits for this packet and this rule.
    fn random(&self, rule: &Rule) -> u32 {
        let mut hasher = AddressHasher::default();
        hasher.write_u64(self.seed);
        hasher.write_u64(self.packet);
        hasher.write_u64(u64::from(rule.id.slot) << 32 | u64::from(rule.id.generation));
        (hasher.finish() >> 33) as u32
    }
}

impl Traversal {
    const BEGIN: Traversal =
        Traversal { calls: [0; CALL_DEPTH], depth: 0, called: 0, argument: 0, tags: [0; MAX_TAGS], tagged: 0, tos: 0 };

    fn number(&self, target: Target) -> u32 {
        match target {
            Target::Number(number) => number.into(),
            Target::TableArg => self.argument,
        }
    }

    /// Sets or clears a tag. A packet has each once.
    fn change_tag(&mut self, tag: Tag) {
        let (Tag::Set(target) | Tag::Clear(target)) = tag;
        let Some(number) = u16::try_from(self.number(target)).ok().filter(|number| (1..u16::MAX).contains(number))
        else {
            return;
        };
        let place = self.tags[..self.tagged].iter().position(|&tag| tag == number);
        match (tag, place) {
            (Tag::Set(_), None) if self.tagged < MAX_TAGS => {
                self.tags[self.tagged] = number;
                self.tagged += 1;
            }
            (Tag::Clear(_), Some(place)) => {
                self.tagged -= 1;
                self.tags[place] = self.tags[self.tagged];
            }
            _ => {}
        }
    }
}
