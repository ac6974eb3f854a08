//! The books' part about what owners set of their switches: ageing, and the rules of ports.
//!
//! ```text
//! set by      who may open ports of the switch: its user, or root in that user's own daemon
//! kept        by the names of switch and port, whether either exists or not; while anything is kept the daemon stays
//! in force    from the port's first packet on, or, where it is open, when the request is answered
//! forgotten   when it is taken off (`unetmap vale port S:P off`), or the daemon ends
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use unetmap::errno::{EINVAL, ENOENT, ENOMEM, EOPNOTSUPP};
use unetmap::vale::ask::{ValeRequest, Wish};
use unetmap::vale::learn::{ENTRIES, LIFE};
use unetmap::vale::rules::{Limit, MOST_INSNS, Ruled, Rules, Vlan};
use unetmap_abi::NM_BDG_NAME;

use crate::books::{Books, PortKey};
use crate::caller::Caller;
use crate::refusal::{Refusal, refuse};
use crate::region::Scope;
use crate::vale::{Switch, ValeKey, ValePort};

/// Ports, and switches, of which one user may set anything.
const MOST_SET: usize = 512;
/// Instructions that all filters of one user's ports may have.
const MOST_INSNS_OF_USER: usize = 4 * MOST_INSNS;

/// Everything that is set.
#[derive(Default)]
pub(crate) struct Settings {
    switches: BTreeMap<(Scope, String), OfSwitch>,
}

#[derive(Default)]
struct OfSwitch {
    /// Seconds; 0: addresses do not age.
    age: u32,
    ports: BTreeMap<String, Rules>,
}

fn insns(rules: &Rules) -> usize {
    rules.filters.iter().flatten().map(|filter| filter.program.len()).sum()
}

impl Settings {
    pub(crate) fn is_empty(&self) -> bool {
        self.switches.is_empty()
    }

    /// Of a port of which anything is set.
    fn of(&self, key: &ValeKey) -> Option<&Rules> {
        self.switches.get(&(key.scope, key.switch.clone()))?.ports.get(&key.port)
    }

    /// The rules of a port that is made, at work.
    pub(crate) fn ruled(&self, key: &ValeKey) -> Option<Arc<Ruled>> {
        // They were at work when they were set.
        Ruled::new(self.of(key)?.clone()).ok().map(Arc::new)
    }

    fn age(&self, switch: &(Scope, String)) -> u32 {
        self.switches.get(switch).map_or(0, |set| set.age)
    }

    /// Changes what is set of a switch; what says nothing any more is forgotten.
    fn change(&mut self, switch: (Scope, String), how: impl FnOnce(&mut OfSwitch)) {
        let set = self.switches.entry(switch).or_default();
        how(set);
        set.ports.retain(|_, rules| *rules != Rules::default());
        self.switches.retain(|_, set| set.age > 0 || !set.ports.is_empty());
    }

    /// Whether there is room for these rules of a port, or for what is set of a switch (no port).
    fn check_room(&self, scope: Scope, switch: &str, port: &str, rules: &Rules) -> Result<(), Refusal> {
        let mine = || self.switches.iter().filter(|((of, _), _)| *of == scope);
        let things: usize = mine().map(|(_, set)| 1 + set.ports.len()).sum();
        let set = self.switches.get(&(scope, switch.to_owned()));
        let known = set.is_some_and(|set| port.is_empty() || set.ports.contains_key(port));
        if things >= MOST_SET && !known {
            return refuse(
                ENOMEM,
                format!("of {MOST_SET} switches and ports something is set already (off takes it off)"),
            );
        }
        let others = |set: &OfSwitch, own: bool| -> usize {
            set.ports.iter().filter(|(name, _)| !own || *name != port).map(|(_, rules)| insns(rules)).sum()
        };
        let all: usize = mine().map(|((_, name), set)| others(set, name == switch)).sum();
        let here: usize = mine().filter(|((_, name), _)| name == switch).map(|(_, set)| others(set, true)).sum();
        let (new, most) = (insns(rules), MOST_INSNS);
        if new > 0 && (here + new > most || all + new > MOST_INSNS_OF_USER) {
            return refuse(
                ENOMEM,
                format!(
                    "the filters of the switch would have {} instructions, and {most} are the most \
                     ({MOST_INSNS_OF_USER} for all switches of a user); give simpler ones",
                    here + new
                ),
            );
        }
        Ok(())
    }
}

#[derive(Serialize)]
pub(crate) struct ShownSwitch {
    switch: String,
    uid: u32,
    /// Open ones.
    ports: usize,
    addresses: usize,
    /// Seconds after which an address is forgotten; 0: never.
    age: u32,
}

#[derive(Serialize)]
struct ShownWhole {
    #[serde(flatten)]
    switch: ShownSwitch,
    most_addresses: usize,
    port: Vec<ShownPort>,
    table: Vec<ShownAddress>,
}

#[derive(Serialize)]
struct ShownAddress {
    address: String,
    vlan: u16,
    port: String,
    /// Seconds since it was last heard, less than what the next figure that could stand here is more; none: they do not age.
    age: Option<u64>,
}

#[derive(Serialize)]
struct ShownPort {
    name: String,
    open: bool,
    index: Option<u8>,
    /// What it is: of programs, an interface, or not there.
    kind: &'static str,
    /// Programs that have it open.
    pids: Vec<u32>,
    mem_id: u16,
    /// The thread that takes what it sends, and the processor where that is or was last.
    thread: Option<usize>,
    cpu: Option<usize>,
    /// Of an interface's queues: the processors that serve nothing else (`vale-ctl -p`).
    polled: BTreeMap<u16, u32>,
    header: u8,
    /// Slots sent and received, as the port's program counts them.
    sent: u64,
    received: u64,
    /// Packets that it sent and that reached no port, by reason.
    lost: BTreeMap<&'static str, u64>,
    /// Packets that it should have received, by reason.
    dropped: BTreeMap<&'static str, u64>,
    rules: ShownRules,
}

#[derive(Serialize, Default)]
struct ShownRules {
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trunk: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_in: Option<ShownLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_out: Option<ShownLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    storm: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_in: Option<ShownFilter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter_out: Option<ShownFilter>,
}

/// In a second; 0: any number.
#[derive(Serialize)]
struct ShownLimit {
    packets: u64,
    bits: u64,
}

#[derive(Serialize)]
struct ShownFilter {
    expression: String,
    instructions: usize,
}

impl ShownRules {
    fn of(rules: &Rules) -> ShownRules {
        let limit = |limit: Limit| {
            let shown = ShownLimit { packets: limit.packets, bits: limit.bits };
            (limit != Limit::default()).then_some(shown)
        };
        let filter = |way: usize| {
            let filter = rules.filters[way].as_ref()?;
            Some(ShownFilter { expression: filter.expression.clone(), instructions: filter.program.len() })
        };
        let (access, trunk) = match &rules.vlan {
            None => (None, None),
            Some(Vlan::Access(vlan)) => (Some(*vlan), None),
            Some(Vlan::Trunk(all)) => (None, Some(all.to_string())),
        };
        ShownRules {
            access,
            trunk,
            limit_in: limit(rules.limits[0]),
            limit_out: limit(rules.limits[1]),
            storm: (rules.storm > 0).then_some(rules.storm),
            filter_in: filter(0),
            filter_out: filter(1),
        }
    }
}

impl Books {
    /// Answers a request about a switch: what the daemon then knows of it, as JSON.
    pub(crate) fn about_vale(&mut self, payload: &[u8], caller: &Caller) -> Result<String, Refusal> {
        let Some(ValeRequest { name, wish }) = ValeRequest::decode(payload) else {
            return refuse(EINVAL, "the request about a switch makes no sense");
        };
        let text = match wish {
            Wish::List => {
                // Whether the caller may have switches at all.
                self.vale_key_of("vale0:x", caller)?;
                serde_json::to_string(&self.shown_switches(Some(self.scope(caller))))
            }
            Wish::Threads | Wish::Plan(_) => {
                self.vale_key_of("vale0:x", caller)?;
                if let Wish::Plan(plan) = wish {
                    self.plan_threads(plan, caller)?;
                }
                self.told_threads()
            }
            Wish::Show | Wish::Age(_) => {
                let switch = self.switch_named(&name, caller)?;
                if let Wish::Age(seconds) = wish {
                    self.set_age(&switch, seconds)?;
                }
                serde_json::to_string(&self.shown_whole(&switch)?)
            }
            Wish::ShowPort => {
                let key = self.vale_port_named(&name, caller)?;
                serde_json::to_string(&self.shown_vale_port(&key)?)
            }
            _ => {
                let key = self.vale_port_named(&name, caller)?;
                self.set_rules(&key, |rules| match wish {
                    Wish::Vlan(vlan) => rules.vlan = vlan,
                    Wish::Limit(way, limit) => rules.limits[way as usize] = limit,
                    Wish::Storm(packets) => rules.storm = packets,
                    Wish::Filter(way, filter) => rules.filters[way as usize] = filter,
                    _ => *rules = Rules::default(),
                })?;
                let open = ShownPort::of(self, &key);
                serde_json::to_string(&open)
            }
        };
        text.or_else(|e| refuse(EOPNOTSUPP, format!("it cannot be shown: {e}")))
    }

    fn switch_named(&mut self, name: &str, caller: &Caller) -> Result<(Scope, String), Refusal> {
        match name.contains(':') || !name.starts_with(NM_BDG_NAME) {
            true => refuse(EINVAL, "a switch is named valeS, without a port"),
            false => {
                let key = self.vale_port_named(&format!("{name}:x"), caller)?;
                Ok((key.scope, key.switch))
            }
        }
    }

    fn set_age(&mut self, switch: &(Scope, String), seconds: u32) -> Result<(), Refusal> {
        if seconds > 0 {
            self.settings.check_room(switch.0, &switch.1, "", &Rules::default())?;
        }
        let before = self.settings.age(switch);
        self.settings.change(switch.clone(), |set| set.age = seconds);
        if let Some(switch) = self.switches.all.get_mut(switch) {
            switch.next_tick = None;
            if before == 0 {
                switch.table.rejuvenate();
            }
        }
        tracing::info!(switch = switch.1, seconds, "ageing set");
        Ok(())
    }

    fn set_rules(&mut self, key: &ValeKey, how: impl FnOnce(&mut Rules)) -> Result<(), Refusal> {
        let before = self.settings.of(key).cloned().unwrap_or_default();
        let mut rules = before.clone();
        how(&mut rules);
        let ruled = Ruled::new(rules.clone()).or_else(|why| refuse(EINVAL, why))?;
        let ruled = (rules != Rules::default()).then(|| Arc::new(ruled));
        if ruled.is_some() {
            self.settings.check_room(key.scope, &key.switch, &key.port, &rules)?;
        }
        let moved = rules.vlan != before.vlan;
        self.settings.change((key.scope, key.switch.clone()), |set| {
            set.ports.insert(key.port.clone(), rules);
        });
        tracing::info!(port = key.name(), "rules set");
        let Some(port) = self.vales.get(key) else { return Ok(()) };
        port.set_ruled(ruled);
        let index = port.index();
        self.switches.order()?;
        if let Some(switch) = self.switches.all.get(&(key.scope, key.switch.clone())) {
            match moved {
                // They were heard in another VLAN.
                true => switch.table.forget(index),
                false => switch.table.ask_again(),
            }
        }
        Ok(())
    }

    /// Lets the addresses of switches age, if it is time for that. Returns when it will be time again; `None`: nobody asked.
    pub(crate) fn age_tables(&mut self) -> Option<Duration> {
        if self.settings.is_empty() {
            return None;
        }
        let now = Instant::now();
        let mut next: Option<Instant> = None;
        for (key, switch) in &mut self.switches.all {
            let step = Duration::from_secs(self.settings.age(key).into()) / LIFE;
            if step.is_zero() {
                continue;
            }
            let mut due = switch.next_tick.unwrap_or(now + step);
            if due <= now {
                switch.table.tick();
                // Held up, it begins anew: nobody was heard meanwhile, either.
                due = now + step;
            }
            switch.next_tick = Some(due);
            next = Some(next.map_or(due, |next| next.min(due)));
        }
        next.map(|next| next - now)
    }

    /// All switches of a user's, or of everybody.
    pub(crate) fn shown_switches(&self, only: Option<Scope>) -> Vec<ShownSwitch> {
        let mine = self.switches.all.iter().filter(|((scope, _), _)| only.is_none_or(|only| only == *scope));
        mine.map(|(key, switch)| self.shown_switch(key, Some(switch))).collect()
    }

    fn shown_switch(&self, key: &(Scope, String), switch: Option<&Switch>) -> ShownSwitch {
        ShownSwitch {
            switch: key.1.clone(),
            uid: key.0.uid,
            ports: switch.map_or(0, |switch| switch.members.iter().flatten().count()),
            addresses: switch.map_or(0, |switch| switch.table.len()),
            age: self.settings.age(key),
        }
    }

    fn shown_whole(&self, of: &(Scope, String)) -> Result<ShownWhole, Refusal> {
        let (switch, set) = (self.switches.all.get(of), self.settings.switches.get(of));
        if switch.is_none() && set.is_none() {
            return refuse(ENOENT, format!("there is no switch {}, and nothing is set of it", of.1));
        }
        let key = |port: &str| ValeKey { scope: of.0, switch: of.1.clone(), port: port.into() };
        let open = self.vales.iter().filter(|(key, _)| (key.scope, &key.switch) == (of.0, &of.1));
        let names: BTreeMap<u8, &str> = open.clone().map(|(key, port)| (port.index(), &*key.port)).collect();
        let mut ports: Vec<&str> = open.map(|(key, _)| &*key.port).collect();
        ports.extend(set.iter().flat_map(|set| set.ports.keys().map(String::as_str)));
        ports.sort_unstable();
        ports.dedup();
        let age = self.settings.age(of);
        let mut table: Vec<ShownAddress> = switch.map_or_else(Vec::new, |switch| {
            let known = switch.table.known();
            let address = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
            let shown = known.iter().map(|known| ShownAddress {
                address: address(known.mac),
                vlan: known.vlan,
                port: names.get(&known.port).copied().unwrap_or("-").into(),
                age: (age > 0).then(|| u64::from(known.age) * u64::from(age) / u64::from(LIFE)),
            });
            shown.collect()
        });
        table.sort_unstable_by(|a, b| (&a.address, a.vlan).cmp(&(&b.address, b.vlan)));
        Ok(ShownWhole {
            switch: self.shown_switch(of, switch),
            most_addresses: ENTRIES,
            port: ports.into_iter().map(|port| ShownPort::of(self, &key(port))).collect(),
            table,
        })
    }

    fn shown_vale_port(&self, key: &ValeKey) -> Result<ShownPort, Refusal> {
        match self.vales.contains_key(key) || self.settings.of(key).is_some() {
            true => Ok(ShownPort::of(self, key)),
            false => refuse(ENOENT, "there is no such port, and nothing is set of it"),
        }
    }
}

impl ShownPort {
    fn of(books: &Books, key: &ValeKey) -> ShownPort {
        let port = books.vales.get(key);
        let interface = books.uplinks.contains_key(key);
        let of_it = books.sessions.values().filter(|session| session.port == PortKey::Vale(key.clone()));
        let thread = port.and_then(|port| books.switches.thread_of(key, port.index()));
        ShownPort {
            name: key.name(),
            open: port.is_some(),
            index: port.map(ValePort::index),
            kind: match port {
                None => "-",
                Some(_) if interface => "interface",
                Some(_) => "program",
            },
            pids: if interface { Vec::new() } else { of_it.map(|session| session.pid).collect() },
            mem_id: port.and_then(|port| books.houses.get(&port.house)).map_or(0, |house| house.mem_id),
            thread,
            cpu: thread.and_then(|thread| books.switches.threads.cpu_of(thread)),
            polled: books.polled(key),
            header: port.map_or(0, ValePort::header),
            sent: port.map_or(0, |port| port.crossed(true)),
            received: port.map_or(0, |port| port.crossed(false)),
            lost: port.map(ValePort::lost).unwrap_or_default(),
            dropped: port.map(ValePort::withheld).unwrap_or_default(),
            rules: books.settings.of(key).map(ShownRules::of).unwrap_or_default(),
        }
    }
}
