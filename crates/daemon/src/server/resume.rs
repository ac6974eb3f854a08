// SPDX-License-Identifier: BSD-2-Clause
//! The waits of requests in the event loop: they begin, threads provide, and requests go on ([`super::waits`]).

use std::time::{Duration, Instant};

use unetmap_core::control::Kind;

use super::Server;
use super::waits::{Waiter, Waiting};
use super::work::{Task, WATCHES, Work};
use crate::caller::Caller;
use crate::daemon::Daemon;
use crate::netmap_requests::{Got, Needs};
use crate::ports::nic::settle::Back;
use crate::ports::nic::{self, NicKey, settle};
use crate::refusal::Refusal;
use crate::region_preparer::Preparer;

/// The work that goes on with a request.
fn work(number: u64) -> Work {
    if number.is_multiple_of(2) { Work::Continue(number) } else { Work::Resume(number) }
}

impl Server {
    /// Has the message of a connection wait.
    pub(super) fn wait(&mut self, token: u64, (kind, payload): (Kind, &[u8]), caller: Option<Caller>, needs: Needs) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.task = Some((kind, Task::Wait));
        let uid = client.peer.uid;
        self.begin_wait(token, uid, Waiter::Connection(payload.to_vec(), caller), needs);
    }

    /// Has the requests of the node wait that need something.
    pub(crate) fn wait_for_node(&mut self) {
        for (needs, request) in self.nodes.take_waiting() {
            self.waits.of_node += 2;
            self.begin_wait(self.waits.of_node + 1, request.caller.peer.uid, Waiter::Node(request), needs);
        }
    }

    fn begin_wait(&mut self, number: u64, uid: u32, waiter: Waiter, needs: Needs) {
        let state = match needs {
            Needs::Survey(wanted, rounds) => {
                let nics = &mut self.daemon.nics;
                nics.surveys.begin(&nics.work, (number, rounds > 0), wanted.clone());
                Err(Needs::Survey(wanted, rounds))
            }
            Needs::Interface(place, rounds) => {
                let user = self.daemon.users.subordinates.owner(uid);
                self.daemon.nics.work.turns.wait(place, user, number, rounds > 1);
                Err(Needs::Interface(place, rounds))
            }
            Needs::Memory(Some(memory), rounds) => {
                if self.waits.preparer.is_none() {
                    self.waits.preparer = self.start_preparer();
                }
                match &self.waits.preparer {
                    Some(preparer) => {
                        preparer.prepare(number, memory);
                        Err(Needs::Memory(None, rounds))
                    }
                    // The control thread touches it.
                    None => Ok(Got::Memory(Some(memory), rounds)),
                }
            }
            Needs::Returning(Some(hidden), rounds) => {
                self.daemon.vale.returning.prefer(hidden);
                Err(Needs::Returning(Some(hidden), rounds))
            }
            other => Err(other),
        };
        let ready = state.is_ok().then_some(uid);
        self.waits.all.insert(number, Waiting { uid, waiter, state });
        self.go_on_at_turn(ready, number);
    }

    /// Has a request go on at its user's turn, if it can: before all else of the user, if others wait for it.
    fn go_on_at_turn(&mut self, ready: Option<u32>, number: u64) {
        match ready {
            Some(uid) if self.waits.has_waited(number) => self.turns.push_urgent(uid, work(number)),
            Some(uid) => self.turns.push(uid, work(number)),
            None => {}
        }
    }

    fn start_preparer(&self) -> Option<Preparer> {
        let started = Preparer::new(self.daemon.nics.work.shared_doorbell()?);
        started.inspect_err(|e| tracing::debug!("no thread that prepares memory: {e}")).ok()
    }

    /// Goes on with a request of the node, if it can.
    pub(super) fn resume(&mut self, number: u64) {
        let Some((Waiter::Node(request), got)) = self.waits.take_ready(number) else { return };
        self.answered = "node: request";
        self.nodes.answer_request_of_program(&mut self.daemon, request, got);
        // Its number is that of its turn at an interface.
        for (needs, request) in self.nodes.take_waiting() {
            self.begin_wait(number, request.caller.peer.uid, Waiter::Node(request), needs);
        }
        self.add_watches();
    }

    /// A request does not wait any more: it gives back what it has.
    pub(super) fn end_wait(&mut self, number: u64) {
        if let Some(waiting) = self.waits.all.remove(&number) {
            self.give_back(number, waiting.state);
        }
    }

    /// Gives back what a request has that does not go on.
    pub(super) fn give_back(&mut self, number: u64, state: Result<Got, Needs>) {
        match state {
            Err(Needs::Survey(..)) => self.daemon.nics.surveys.forget(number),
            Err(Needs::Interface(place, _)) => self.daemon.nics.work.turns.leave(place, number),
            Err(Needs::Sockets(_, open)) | Ok(Got::Sockets(open, _)) => open.give_up(&mut self.daemon),
            Ok(Got::Memory(memory, _)) => {
                self.waits.preparer.iter().zip(memory).for_each(|(preparer, memory)| preparer.free(memory));
            }
            _ => {}
        }
    }

    /// Gives requests what threads have done for them.
    pub(super) fn threads_have_done(&mut self) {
        let Back { nics, surveys } = settle::take_back(&mut self.daemon);
        for (number, survey) in surveys {
            let ready = self.waits.provide(number, |needs| match needs {
                Needs::Survey(_, rounds) => Ok(Got::Survey(survey, rounds)),
                other => Err(other),
            });
            self.go_on_at_turn(ready, number);
        }
        for (nic, result) in nics {
            if let Some(result) = self.daemon.opened_again(nic, result) {
                self.interface_is_back(nic, result);
            }
        }
        self.provide_returned();
        let prepared = self.waits.preparer.as_ref().map(Preparer::take_done).unwrap_or_default();
        for (number, memory) in prepared {
            self.turns.count_time(memory.scope.uid, memory.time());
            let mut memory = Some(memory);
            let ready = self.waits.provide(number, |needs| match needs {
                Needs::Memory(_, rounds) => Ok(Got::Memory(memory.take(), rounds)),
                other => Err(other),
            });
            match memory {
                None => self.go_on_at_turn(ready, number),
                memory => self.give_back(number, Ok(Got::Memory(memory, 0))),
            }
        }
        settle::close_unneeded(&mut self.daemon);
        self.add_watches();
    }

    /// A thread has given an interface back: an open that waits for its sockets goes on at once.
    fn interface_is_back(&mut self, nic: NicKey, result: Result<(), Refusal>) {
        let mut result = Some(result);
        for number in self.waits.that_need(|needs| matches!(needs, Needs::Sockets(of, ..) if *of == nic)) {
            let ready = self.waits.provide(number, |needs| match needs {
                Needs::Sockets(_, open) => Ok(Got::Sockets(open, result.take().unwrap_or(Ok(())))),
                other => Err(other),
            });
            if let Some(uid) = ready {
                self.do_work(uid, work(number));
            }
        }
    }

    /// Gives requests their turns at interfaces; returns whether any goes on.
    pub(super) fn give_turns(&mut self) -> bool {
        let Server { waits, daemon: Daemon { registry, nics, .. }, .. } = self;
        let next = nics.work.turns.next(|number| waits.keeps_turn(number), |place| !nic::is_away(registry, place));
        for &number in &next {
            let ready = self.waits.provide(number, |needs| match needs {
                Needs::Interface(_, rounds) => Ok(Got::Interface(rounds)),
                other => Err(other),
            });
            self.go_on_at_turn(ready, number);
        }
        !next.is_empty()
    }

    /// Has the next served again of what an earlier daemon has left; returns the time until there is more to do.
    pub(super) fn serve_again(&mut self, now: Instant) -> Option<Duration> {
        if self.daemon.vale.returning.is_empty() {
            return None;
        }
        self.daemon.nics.heartbeat.control_begins();
        let due = self.daemon.serve_again(now);
        self.provide_returned();
        self.add_watches();
        self.daemon.after_work();
        due
    }

    /// Has requests go on that wait for what is served again by now.
    fn provide_returned(&mut self) {
        let returning = &self.daemon.vale.returning;
        let is_served = |needs: &Needs| matches!(needs, Needs::Returning(of, _) if !returning.awaits(*of));
        for number in self.waits.that_need(is_served) {
            let ready = self.waits.provide(number, |needs| match needs {
                Needs::Returning(_, rounds) => Ok(Got::Interface(rounds)),
                other => Err(other),
            });
            self.go_on_at_turn(ready, number);
        }
    }

    /// Has requests go on at once that wait for memory: it is touched as they use it.
    pub(crate) fn end_memory_waits(&mut self) {
        for number in self.waits.that_need(|needs| matches!(needs, Needs::Memory(..))) {
            self.waits.provide(number, |needs| match needs {
                Needs::Memory(_, rounds) => Ok(Got::Memory(None, rounds)),
                other => Err(other),
            });
        }
        let ready = self.waits.all.iter().filter(|(_, waiting)| matches!(waiting.state, Ok(Got::Memory(..))));
        for number in ready.map(|(number, _)| *number).collect::<Vec<_>>() {
            if number.is_multiple_of(2) { self.continue_answer(number) } else { self.resume(number) }
        }
    }

    /// Adds new watches of interfaces to the event loop. A watch that is closed leaves it.
    pub(crate) fn add_watches(&mut self) {
        let mut added = Ok(());
        let state = &mut self.daemon.nics;
        for (netns, watch) in state.watches.iter_mut().filter(|(_, watch)| !watch.in_event_loop) {
            watch.in_event_loop = true;
            added = added.and(self.epoll.add(&watch.watch, WATCHES | *netns, true, false));
        }
        if let Some(watch) = state.settings.watch()
            && !state.settings.in_event_loop
        {
            added = added.and(self.epoll.add(watch, WATCHES | nic::ALL_NAMESPACES, true, false));
            state.settings.in_event_loop = true;
        }
        if let Err(e) = added {
            tracing::warn!("changes of interfaces will not be noticed: {e}");
        }
    }
}
