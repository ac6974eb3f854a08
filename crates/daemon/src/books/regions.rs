//! The regions that ports lie in: which one a port gets, who still has something in it, and what becomes of it after.

use std::sync::{Arc, Weak};

use unetmap::errno::{EINVAL, ENOMEM};
use unetmap_mem::{BufIdx, IndexSet, Pos};

use super::{Books, PipeKey};
use crate::caller::Caller;
use crate::end::{End, EndShape};
use crate::estate::Estate;
use crate::interfaces::DAEMON;
use crate::monitor::Monitor;
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope, Sizes};

impl Books {
    /// The region of this caller's that programs call `mem_id`.
    pub(crate) fn numbered(&self, mem_id: u16, caller: &Caller) -> Result<HouseId, Refusal> {
        let scope = self.scope(caller);
        let mine = |house: &&House| match house.mem_id {
            1 => house.scope == (Scope { netns: caller.netns_id(), ..scope }),
            _ => house.scope.uid == scope.uid,
        };
        match self.houses.values().filter(|house| house.mem_id == mem_id).find(mine) {
            Some(house) => Ok(house.id),
            None => refuse(EINVAL, format!("there is no region {mem_id} (unetmap ls shows them)")),
        }
    }

    /// The region of a parent that is no interface, made now if need be, such that the pipe `first` fits.
    pub(super) fn house_of_parent(&mut self, key: &PipeKey, first: &EndShape) -> Result<HouseId, Refusal> {
        let mut siblings = self.pipes.iter().filter(|(k, _)| k.scope == key.scope && k.parent == key.parent);
        if let Some((_, pipe)) = siblings.next() {
            return Ok(pipe.house);
        }
        self.private_region(key.scope, &key.parent, self.knobs.of_others().with_pipe(first))
    }

    /// A new region with a number of its own.
    pub(crate) fn private_region(&mut self, scope: Scope, name: &str, sizes: Sizes) -> Result<HouseId, Refusal> {
        let (id, mem_id) = self.free_number()?;
        let estate = self.estate_for(scope);
        self.houses.insert(id, House::create((id, mem_id), scope, name, sizes, estate.as_ref())?);
        Ok(id)
    }

    /// A number that no region has.
    pub(crate) fn free_number(&self) -> Result<(HouseId, u16), Refusal> {
        let free = |id: &u16| !self.houses.contains_key(&HouseId::from(*id));
        match (self.rules.first_mem_id..=u16::MAX).find(free) {
            Some(mem_id) => Ok((HouseId::from(mem_id), mem_id)),
            None => refuse(ENOMEM, "all region numbers are in use"),
        }
    }

    /// The region of all interfaces that this caller opens directly, and of their pipes. The first of them has so many
    /// `slots`.
    pub(crate) fn first_region(&mut self, caller: &Caller, slots: u32) -> Result<HouseId, Refusal> {
        if let Ok(id) = self.numbered(1, caller) {
            return Ok(id);
        }
        let scope = Scope { netns: caller.netns_id(), ..self.scope(caller) };
        let id = self.next_house;
        self.next_house += 1;
        let (sizes, estate) = (self.knobs.of_interfaces(slots), self.estate_for(scope));
        self.houses.insert(id, House::create((id, 1), scope, "interfaces", sizes, estate.as_ref())?);
        Ok(id)
    }

    /// The file of all regions of `uid`.
    pub(crate) fn estate(&mut self, uid: u32) -> Result<Arc<Estate>, Refusal> {
        if let Some(estate) = self.estates.get(&uid).and_then(Weak::upgrade) {
            return Ok(estate);
        }
        self.estates.retain(|_, estate| estate.strong_count() > 0);
        let made = Estate::new().or_else(|e| refuse(ENOMEM, format!("no memory for a user's regions: {e}")))?;
        let made = Arc::new(made);
        self.estates.insert(uid, Arc::downgrade(&made));
        Ok(made)
    }

    /// Where a new region of `scope` goes, if the node is on. No program sees the daemon's own regions.
    fn estate_for(&mut self, scope: Scope) -> Option<Arc<Estate>> {
        if !self.node || scope.uid == DAEMON {
            return None;
        }
        self.estate(scope.uid).inspect_err(|refusal| tracing::warn!("{}", refusal.why)).ok()
    }

    /// The indexes in all rings of a region.
    pub(crate) fn living(&self, id: HouseId) -> Vec<BufIdx> {
        let exchanging = self.exchanging(id);
        let _still: Vec<_> = exchanging.iter().map(|port| port.still()).collect();
        let pipes = self.pipes.values().filter(|pipe| pipe.house == id).flat_map(|pipe| &pipe.ends);
        let nulls = self.nulls.values().filter(|port| port.house == id).map(|port| &port.end);
        let nics = self.nics.values().filter(|nic| nic.house == id).map(|nic| &nic.end);
        let vales = self.vales.values().filter(|port| port.house == id).map(|port| &port.end);
        let monitors = self.monitors.values().chain(&self.closed_monitors).filter(|port| port.house == id);
        let monitors = monitors.flat_map(Monitor::ends);
        pipes.chain(nulls).chain(nics).chain(vales).chain(monitors).flat_map(End::buffers).collect()
    }

    /// Whoever dies in the middle of exchanging two buffers leaves one of them in two slots and the other in none. A slot
    /// of a ring that nobody has bound, whose buffer is in another slot too, gets a fresh one, or the next to bind the
    /// ring would share it with somebody. The buffer that is in no slot may just as well be in a living program's hands
    /// at this moment: it stays in quarantine until the region closes.
    pub(super) fn mend(&mut self, id: HouseId) {
        let exchanging = self.exchanging(id);
        let _still: Vec<_> = exchanging.iter().map(|port| port.still()).collect();
        let Some(house) = self.houses.get_mut(&id) else { return };
        let limits = house.region.limits();
        let mut seen = IndexSet::new(limits.bufs);
        let mut idle = Vec::new();
        let pipes = self.pipes.values().filter(|pipe| pipe.house == id);
        let ends = pipes.flat_map(|pipe| pipe.ends.iter().map(move |end| (end, Some(&pipe.lines))));
        let nics = self.nics.values().filter(|nic| nic.house == id).map(|nic| (&nic.end, None));
        let vales = self.vales.values().filter(|port| port.house == id).map(|port| (&port.end, None));
        for (end, lines) in ends.chain(nics).chain(vales) {
            for ring in end.tx.iter().chain(end.rx.iter().filter(|ring| ring.owns())) {
                let slots = ring.view.slots().slots();
                let line = ring.words(lines).and_then(|words| words.positions(slots));
                // What was sent and not released is the receiver's to read.
                let sent =
                    |p: Pos| line.is_some_and(|line| slots.distance(line.from, p) < slots.distance(line.from, line.to));
                for p in House::positions(&ring.view) {
                    if ring.binders() == 0 && !sent(p) {
                        idle.push((&ring.view, p));
                    } else {
                        seen.insert(ring.view.slots().buf_idx(p));
                    }
                }
            }
            if lines.is_some() {
                for idx in end.exchanged() {
                    seen.insert(idx);
                }
            }
        }
        let monitors = self.monitors.values().chain(&self.closed_monitors);
        for end in monitors.filter(|monitor| monitor.house == id).flat_map(Monitor::ends) {
            for idx in end.buffers() {
                seen.insert(idx);
            }
        }
        for (view, p) in idle {
            let idx = view.slots().buf_idx(p);
            if (!limits.index_ok(idx) || !seen.insert(idx))
                && let Ok(fresh) = house.take_buf()
            {
                view.slots().set_buf_idx(p, fresh);
            }
        }
    }

    /// Gives rings of a region back, and their buffers.
    pub(crate) fn give_back(&mut self, id: HouseId, mut ends: Vec<End>) {
        let found: Vec<BufIdx> = ends.iter().flat_map(End::buffers).collect();
        let living = self.living(id);
        if let Some(house) = self.houses.get_mut(&id) {
            for end in &mut ends {
                end.drop_rings(house);
            }
            house.reclaim(&found, &living);
        }
        self.drop_house_if_unused(id);
    }

    pub(crate) fn drop_house_if_unused(&mut self, id: HouseId) {
        let used = self.houses.get(&id).is_some_and(|house| house.sessions > 0)
            || self.pipes.values().any(|pipe| pipe.house == id)
            || self.nulls.values().any(|port| port.house == id)
            || self.nics.values().any(|nic| nic.house == id)
            || self.vales.values().any(|port| port.house == id)
            || self.monitors.values().chain(&self.closed_monitors).any(|port| port.house == id);
        if !used && let Some(house) = self.houses.remove(&id) {
            let census = house.census(&[]);
            tracing::debug!(house.mem_id, ?census, "region closed");
        }
    }
}
