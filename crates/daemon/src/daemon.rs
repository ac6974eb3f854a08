// SPDX-License-Identifier: BSD-2-Clause
//! The state of the daemon.

use std::path::PathBuf;

use unetmap_core::errno::EACCES;

use crate::admission::Admission;
use crate::caller::Caller;
use crate::events::{EventLog, What};
use crate::history::History;
use crate::knobs::{KnobSources, Knobs};
use crate::ledger::Ledger;
use crate::owner::owner;
use crate::ports::Registry;
use crate::ports::arrival_thread::ArrivalState;
use crate::ports::mediator_state::MediatorState;
use crate::ports::monitor::MonitorState;
use crate::ports::nic::{self, NicState};
use crate::ports::vale::ValeState;
use crate::refusal::Refusal;
use crate::region::{RegionKey, RegionMemory, Scope, Sizes};
use crate::users::Users;

/// The state of the daemon, as control requests and events use and change it.
pub(crate) struct Daemon {
    pub(crate) registry: Registry,
    pub(crate) knobs: Knobs,
    pub(crate) knob_sources: KnobSources,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    pub(crate) admission: Admission,
    pub(crate) users: Users,
    pub(crate) events: EventLog,
    pub(crate) history: History,
    pub(crate) nics: NicState,
    pub(crate) vale: ValeState,
    pub(crate) monitors: MonitorState,
    pub(crate) arrivals: ArrivalState,
    pub(crate) mediators: MediatorState,
    /// Whether a request was to change a setting that is kept: one from before may not come back after a crash.
    pub(crate) settings_changed: bool,
    /// Why the daemon is to end.
    pub(crate) ends: Option<&'static str>,
}

impl Daemon {
    /// Returns a daemon without ports. Private regions are numbered from `first_mem_id`.
    pub(crate) fn new(knobs: Knobs, admission: Admission, first_mem_id: u16) -> Daemon {
        let ledger = Ledger::default();
        Daemon {
            registry: Registry::new(first_mem_id, ledger.clone()),
            nics: NicState::default(),
            vale: ValeState::new(knobs.thread_plan().clone(), knobs.switch_addresses(), ledger.clone()),
            monitors: MonitorState::default(),
            arrivals: ArrivalState::default(),
            mediators: MediatorState::default(),
            settings_changed: false,
            ends: None,
            knobs,
            knob_sources: KnobSources::default(),
            socket: PathBuf::new(),
            admission,
            users: Users { ledger, ..Users::default() },
            events: EventLog::default(),
            history: History::new(),
        }
    }

    /// Goes on after the process `was`, which has crashed or was replaced.
    pub(crate) fn goes_on_after(&mut self, was: u32, before: History, has_crashed: bool) {
        self.history.go_on_after(before, has_crashed);
        self.vale.all_unsaved();
        let port = "unetmapd";
        let what = if has_crashed { What::DaemonCrashed { port, was } } else { What::DaemonTookOver { port, was } };
        self.events.add(owner(), what);
    }

    /// Counts a request that was refused, if that is since the policy does not allow it.
    pub(crate) fn count_policy_refusal(&mut self, uid: u32, errno: i32, why: &str) {
        if errno == EACCES {
            self.history.refused_by_policy();
            self.events.policy_refused(uid, why);
        }
    }

    /// Whether the daemon must keep running though no client is connected: it has state that would be lost.
    pub(crate) fn has_state(&self) -> bool {
        self.nics.has_settings() || self.vale.has_state(&self.registry) || self.knobs.changed()
    }

    /// Returns the region of this caller that programs call `mem_id`.
    pub(crate) fn region_by_number(&self, mem_id: u16, caller: &Caller) -> Result<RegionKey, Refusal> {
        // Only region 1 is that of a namespace.
        let netns = if mem_id == 1 { caller.netns_id() } else { 0 };
        self.registry.regions.by_number(mem_id, self.admission.scope(caller), netns)
    }

    /// Returns the region of all interfaces that this caller opens directly, and of their pipes. It is created if there
    /// is none, for a first interface with `slots` slots, which is to be opened with `zero_copy`.
    pub(crate) fn interface_region(
        &mut self,
        caller: &Caller,
        slots: u32,
        zero_copy: bool,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        if let Ok(region) = self.region_by_number(1, caller) {
            return Ok(region);
        }
        let (scope, sizes) = (self.admission.interface_scope(caller), self.knobs.interface_sizes(slots, zero_copy));
        self.registry.regions.create_for_interfaces(scope, sizes, memory)
    }

    /// Returns the region that a request for a port names. Region 1 always exists, so it is created if there is none:
    /// the caller frees it if it creates no port in it.
    pub(crate) fn requested_region(
        &mut self,
        mem_id: u16,
        caller: &Caller,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        match (mem_id, self.region_by_number(mem_id, caller)) {
            (1, Err(_)) => {
                let sizes = self.sizes_without_interface(caller);
                let scope = self.admission.interface_scope(caller);
                self.registry.regions.create_for_interfaces(scope, sizes, memory)
            }
            (_, region) => region,
        }
    }

    /// Returns the sizes of region 1 if its first port is no interface. Its buffers suit the interfaces that may be
    /// opened in it later.
    pub(crate) fn sizes_without_interface(&mut self, caller: &Caller) -> Sizes {
        let has_policy = self.admission.policy.is_some();
        let may = has_policy && matches!(nic::may_have_interfaces(&mut self.admission, caller), Ok(true));
        let zero_copy = may && nic::expects_any_zero_copy(&mut self.nics.settings, caller);
        self.knobs.interface_sizes(0, zero_copy)
    }

    /// Returns the region of the pipes that a parent has, if it has any. A port that is created later as their parent
    /// joins it.
    pub(crate) fn region_of_pipes(&self, scope: Scope, parent: &str) -> Option<RegionKey> {
        self.registry.region_of_pipes(scope, parent)
    }
}
