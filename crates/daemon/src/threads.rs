//! The threads of the switches: how many, on which processors, and which ports each looks after.
//!
//! ```text
//! thread 0 .. n   each port has one, which takes what the port sends; any delivers to any port
//! plan            how many, and where; of the configuration file, until the daemon's owner says otherwise
//! spread          a new port goes to the thread with the fewest rings; one moves when that makes them more even
//! ```
//! A change reaches all threads before anybody waits for one. Then each has let go of what it had before.
//!
//! A port that moves may be with two threads for a moment, as a ring is served under its own lock. Who had it may silence
//! the bell that was to wake the one that has it now; therefore the bell is rung once more when all have taken the order.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use serde::Serialize;
use unetmap::errno::{EINVAL, ENOMEM, EPERM};
use unetmap::vale::ask::Plan;
use unetmap::vale::thread::{self, Post, View};
use unetmap_sys::process;
use unetmap_sys::thread::cpu_of;

use crate::books::Books;
use crate::caller::Caller;
use crate::refusal::{Refusal, refuse};

/// See the module.
#[derive(Default)]
pub(crate) struct Threads {
    plan: Plan,
    /// As the daemon was started.
    begun: Plan,
    running: Vec<Running>,
}

struct Running {
    post: Arc<Post>,
    thread: JoinHandle<()>,
    /// The processor that it stays on.
    cpu: Option<u16>,
}

/// A port, as far as it matters who looks after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Rings that it sends on.
    pub(crate) rings: usize,
    /// Its thread; `None`: it is new.
    pub(crate) thread: Option<usize>,
}

impl Threads {
    pub(crate) fn new(plan: Plan) -> Threads {
        Threads { begun: plan.clone(), plan, running: Vec::new() }
    }

    /// Whether another plan was set since the daemon began, which would be lost with it.
    pub(crate) fn changed(&self) -> bool {
        self.plan != self.begun
    }

    /// Starts those that the plan says; returns how many there are of them.
    pub(crate) fn start(&mut self) -> Result<usize, Refusal> {
        let wanted = usize::from(self.plan.threads);
        while self.running.len() < wanted {
            match Running::start(self.running.len()) {
                Ok(running) => self.running.push(running),
                Err(e) if self.running.is_empty() => {
                    return refuse(ENOMEM, format!("no thread for the switch: {e}"));
                }
                Err(e) => {
                    tracing::warn!(wanted, there = self.running.len(), "no more threads for the switches: {e}");
                    break;
                }
            }
        }
        Ok(self.running.len().min(wanted))
    }

    /// Has all threads work by these views, each by those that `views` gives for its number; ends the threads that the plan
    /// has no longer. When it returns `true`, no thread uses what is in no view.
    pub(crate) fn order(&mut self, views: impl Fn(usize) -> Vec<View>) -> bool {
        let since = Instant::now();
        let ordered: Vec<u64> = (0..).zip(&self.running).map(|(n, running)| running.post.order(views(n))).collect();
        let mut all = true;
        for (running, order) in self.running.iter().zip(ordered) {
            all &= running.post.let_go(order, since);
        }
        for running in self.running.drain(usize::from(self.plan.threads).min(self.running.len())..) {
            running.end();
        }
        self.place();
        all
    }

    /// Puts the threads on the processors that the plan has for them.
    fn place(&mut self) {
        for (n, running) in self.running.iter_mut().enumerate() {
            let wanted = self.plan.cpu_of(n);
            if running.cpu == wanted {
                continue;
            }
            let cpus = wanted.map_or_else(process::cpus_allowed, |cpu| vec![cpu.into()]);
            match process::run_thread_on_cpus(running.post.tid(), &cpus) {
                Ok(()) => running.cpu = wanted,
                Err(e) => tracing::warn!(thread = n, ?wanted, "the switch's thread stays where it was: {e}"),
            }
        }
    }

    /// Ends all.
    pub(crate) fn end(&mut self) {
        self.running.drain(..).for_each(Running::end);
    }

    /// The processor on which a thread is, or was last.
    pub(crate) fn cpu_of(&self, thread: usize) -> Option<usize> {
        cpu_of(self.running.get(thread)?.post.tid()).ok()
    }
}

impl Running {
    fn start(number: usize) -> io::Result<Running> {
        let post = Arc::new(Post::new()?);
        let its = post.clone();
        let thread = std::thread::Builder::new().name(format!("switch {number}")).spawn(move || thread::run(&its))?;
        Ok(Running { post, thread, cpu: None })
    }

    fn end(self) {
        self.post.end();
        if self.thread.join().is_err() {
            tracing::error!("a switch's thread had died");
        }
    }
}

/// Gives each port that has none one of `threads` threads, and moves others as long as that makes the threads' rings more
/// even. Who has a thread that there is no longer, has none.
pub(crate) fn spread(ports: &mut [Load], threads: usize) {
    let mut rings = vec![0; threads.max(1)];
    let mut new = Vec::new();
    for port in ports.iter_mut() {
        match port.thread.filter(|thread| *thread < rings.len()) {
            Some(thread) => rings[thread] += port.rings,
            None => new.push(port),
        }
    }
    let least = |rings: &[usize]| (0..rings.len()).min_by_key(|thread| rings[*thread]).unwrap_or(0);
    for port in new {
        let thread = least(&rings);
        rings[thread] += port.rings;
        port.thread = Some(thread);
    }
    loop {
        let to = least(&rings);
        // What a move makes the sum of the squares smaller by, in halves: nothing, if the one thread has not more rings
        // more than the other than the port has.
        let gain = |port: &Load| {
            let more = rings[port.thread.unwrap_or(to)] - rings[to];
            port.rings * more.saturating_sub(port.rings)
        };
        let Some(port) = ports.iter_mut().max_by_key(|port| gain(port)).filter(|port| gain(port) > 0) else { return };
        if let Some(from) = port.thread.replace(to) {
            rings[from] -= port.rings;
            rings[to] += port.rings;
        }
    }
}

/// The threads, as they are told.
#[derive(Serialize)]
struct Told<'a> {
    /// As planned.
    threads: u16,
    cpus: &'a [u16],
    running: Vec<ShownThread>,
}

#[derive(Serialize)]
pub(crate) struct ShownThread {
    thread: usize,
    tid: u32,
    /// The processor on which it is, or was last.
    cpu: Option<usize>,
    /// The one that it has to stay on.
    pinned: Option<u16>,
    /// Ports that it looks after, and rings on which they send.
    ports: usize,
    rings: usize,
}

impl Books {
    /// The threads of the switches, where there are any.
    pub(crate) fn shown_threads(&self) -> Vec<ShownThread> {
        let loads = self.switches.loads();
        let shown = self.switches.threads.running.iter().enumerate().map(|(n, running)| {
            let own = || loads.iter().filter(|load| load.thread == Some(n));
            ShownThread {
                thread: n,
                tid: running.post.tid(),
                cpu: self.switches.threads.cpu_of(n),
                pinned: running.cpu,
                ports: own().count(),
                rings: own().map(|load| load.rings).sum(),
            }
        });
        shown.collect()
    }

    /// All that there is to say of them, as JSON.
    pub(crate) fn told_threads(&self) -> serde_json::Result<String> {
        let Plan { threads, cpus } = &self.switches.threads.plan;
        serde_json::to_string(&Told { threads: *threads, cpus, running: self.shown_threads() })
    }

    /// Changes the plan, and has the threads that run work by it.
    pub(crate) fn plan_threads(&mut self, plan: Plan, caller: &Caller) -> Result<(), Refusal> {
        let (uid, owner) = (caller.peer.uid, process::uid());
        if uid != 0 && uid != owner {
            return refuse(EPERM, format!("only root and user {owner}, whose daemon this is, say how many there are"));
        }
        let there = process::cpus_allowed();
        if let Some(cpu) = plan.cpus.iter().find(|cpu| !there.contains(&usize::from(**cpu))) {
            return refuse(EINVAL, format!("processor {cpu} is not there, or not the daemon's ({there:?} are)"));
        }
        tracing::info!(uid, threads = plan.threads, cpus = ?plan.cpus, "threads of switches planned");
        self.switches.threads.plan = plan;
        self.switches.order()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rings_of(ports: &[Load], threads: usize) -> Vec<usize> {
        (0..threads).map(|n| ports.iter().filter(|p| p.thread == Some(n)).map(|p| p.rings).sum()).collect()
    }

    #[test]
    fn ports_go_where_the_fewest_rings_are() {
        let new = |rings| Load { rings, thread: None };
        let mut ports = [new(4), new(1), new(1), new(1), new(1)];
        spread(&mut ports, 2);
        assert_eq!(ports.map(|port| port.thread), [Some(0), Some(1), Some(1), Some(1), Some(1)]);
        spread(&mut ports, 1);
        assert_eq!(ports.map(|port| port.thread), [Some(0); 5]);
        spread(&mut ports, 2);
        assert_eq!(rings_of(&ports, 2), [4, 4]);
    }

    #[test]
    fn who_is_well_where_it_is_stays() {
        let mut ports = [Load { rings: 1, thread: Some(1) }, Load { rings: 1, thread: Some(0) }];
        let before = ports;
        spread(&mut ports, 2);
        assert_eq!(ports, before);
    }

    proptest! {
        #[test]
        fn no_move_would_make_it_more_even(
            all in prop::collection::vec((1usize..=16, prop::option::of(0usize..6)), 0..40),
            threads in 1usize..6,
        ) {
            let mut ports: Vec<Load> = all.iter().map(|&(rings, thread)| Load { rings, thread }).collect();
            spread(&mut ports, threads);
            prop_assert!(ports.iter().all(|port| port.thread.is_some_and(|thread| thread < threads)));
            let rings = rings_of(&ports, threads);
            let least = *rings.iter().min().unwrap();
            for port in &ports {
                prop_assert!(rings[port.thread.unwrap()] <= least + port.rings);
            }
            // And then nothing moves any more.
            let settled = ports.clone();
            spread(&mut ports, threads);
            prop_assert_eq!(ports, settled);
        }
    }
}
