//! The option OFFSETS: packets that begin behind the start of their buffers.
//!
//! Whoever binds a ring first says how; who shares it later must be content with that.

use unetmap::errno::{EBUSY, EINVAL, EOPNOTSUPP};
use unetmap_abi::NmreqOptOffsets;
use unetmap_mem::{LinePage, Offsets, Pos};

use crate::books::{Books, By, Found, Options, PortKey};
use crate::end::{Binding, End, PortRing};
use crate::monitor::Monitor;
use crate::refusal::{Refusal, refuse};
use crate::region::House;

/// What a client wants, judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) offsets: Offsets,
    /// Every slot's at first.
    initial: u32,
    /// Bytes of each buffer that received packets must leave free.
    pub(crate) headroom: u32,
}

impl Wanted {
    /// Judges the option for buffers of so many bytes.
    pub(crate) fn judge(option: &NmreqOptOffsets, buffer: u32) -> Result<Wanted, Refusal> {
        let (bits, max, initial) = (option.nro_offset_bits, option.nro_max_offset, option.nro_initial_offset);
        let mask = match bits {
            0 | 64 => u64::MAX,
            1..64 => (1 << bits) - 1,
            _ => return refuse(EINVAL, format!("an offset has at most 64 bits, not {bits}")),
        };
        let Some(most) = u32::try_from(max).ok().filter(|most| *most <= buffer) else {
            return refuse(EINVAL, format!("offsets go up to the size of a buffer, {buffer}, not to {max}"));
        };
        if max & mask != max {
            return refuse(EINVAL, format!("{bits} bits cannot hold the largest offset, {max}"));
        }
        let Some(initial) = u32::try_from(initial).ok().filter(|initial| *initial <= most) else {
            return refuse(EINVAL, format!("the first offset, {initial}, is larger than the largest, {max}"));
        };
        // Slots that share a buffer leave each other so much of it.
        let gap = u32::try_from(option.nro_min_gap).unwrap_or(u32::MAX);
        let gap = if gap == 0 { buffer } else { gap };
        Ok(Wanted { offsets: Offsets { mask, max: most }, initial, headroom: most.max(buffer.saturating_sub(gap)) })
    }
}

impl Books {
    /// Sets up the rings of a session to be for the option OFFSETS, or for none.
    pub(crate) fn grant_offsets(
        &mut self,
        key: &PortKey,
        binding: &Binding,
        options: &Options,
    ) -> Result<Option<Wanted>, Refusal> {
        let Found { house, end, by } = self.port(key)?;
        let wanted = match &options.offsets {
            None => None,
            Some(_)
                if matches!(key, PortKey::Monitor(id) if self.monitors.get(id).is_some_and(Monitor::trades))
                    || matches!(key, PortKey::Pipe(pipe, _) if pipe.id.is_none()) =>
            {
                return refuse(EOPNOTSUPP, "packets of this kind of port begin where their buffers do");
            }
            Some(option) => {
                let buffer = self.houses.get(&house).map_or(0, |house| house.region.limits().buf_size);
                let wanted = end.judge_offsets(binding, Wanted::judge(option, buffer)?)?;
                if let By::Nic(nic) = by {
                    nic.judge_headroom(binding, wanted.headroom)?;
                }
                Some(wanted)
            }
        };
        match key {
            PortKey::Pipe(key, at) => {
                if let Some(pipe) = self.pipes.get_mut(key) {
                    pipe.ends[*at].set_offsets(binding, wanted, Some(&pipe.lines));
                }
            }
            PortKey::Null(scope, name) => {
                if let Some(port) = self.nulls.get_mut(&(*scope, name.clone())) {
                    port.end.set_offsets(binding, wanted, None);
                }
            }
            PortKey::Nic(key) => {
                if let Some(nic) = self.nics.get_mut(key) {
                    nic.end.set_offsets(binding, wanted, None);
                }
            }
            PortKey::Monitor(id) => {
                if let Some(monitor) = self.monitors.get_mut(id) {
                    monitor.end.set_offsets(binding, wanted, None);
                }
            }
            PortKey::Vale(key) => {
                if let Some(port) = self.vales.get_mut(key) {
                    port.end.set_offsets(binding, wanted, Some(&port.lines));
                    port.tell_offsets();
                }
            }
        }
        Ok(wanted)
    }
}

impl End {
    /// What the rings of `binding` will have: those that are in use, what they have.
    pub(crate) fn judge_offsets(&self, binding: &Binding, wanted: Wanted) -> Result<Wanted, Refusal> {
        let mut granted = wanted;
        for ring in self.bound(binding).filter(|ring| ring.binders() > 0 && ring.offsets.mask != 0) {
            let Offsets { mask, max } = ring.offsets;
            if mask & wanted.offsets.mask != wanted.offsets.mask || max < wanted.offsets.max {
                return refuse(EBUSY, format!("the ring is in use, with offsets of up to {max} (bits {mask:#x})"));
            }
            granted.offsets = ring.offsets;
        }
        Ok(granted)
    }

    /// Sets up the rings of `binding` that nobody has bound; those that are in use without offsets get them, too.
    pub(crate) fn set_offsets(&mut self, binding: &Binding, wanted: Option<Wanted>, lines: Option<&LinePage>) {
        for (ring, transmit) in self.selected(binding) {
            let first = ring.binders() == 0;
            match wanted {
                None if first => ring.tell_offsets(Offsets::NONE, 0),
                Some(wanted) if first || ring.offsets.mask == 0 => ring.tell_offsets(wanted.offsets, wanted.headroom),
                _ => {}
            }
            if let Some(wanted) = wanted.filter(|_| first) {
                // Of these the slots that have been sent are where the packets are.
                ring.begin_at(wanted.initial, if transmit || ring.owns() { lines } else { None });
            }
        }
    }
}

impl PortRing {
    fn tell_offsets(&mut self, offsets: Offsets, headroom: u32) {
        (self.offsets, self.headroom) = (offsets, headroom);
        self.view.set_offset_mask(offsets.mask);
    }

    /// Writes the offset into all slots but those that were sent and not given back.
    fn begin_at(&self, initial: u32, lines: Option<&LinePage>) {
        let slots = self.view.slots().slots();
        let line = self.words(lines).and_then(|words| words.positions(slots));
        let sent = |p: Pos| line.is_some_and(|line| slots.distance(line.from, p) < slots.distance(line.from, line.to));
        for p in House::positions(&self.view).filter(|p| !sent(*p)) {
            let ptr = self.view.slots().ptr(p);
            self.view.slots().set_ptr(p, self.offsets.put(ptr, initial));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(bits: u32, max: u64, initial: u64, gap: u64) -> NmreqOptOffsets {
        NmreqOptOffsets {
            nro_offset_bits: bits,
            nro_max_offset: max,
            nro_initial_offset: initial,
            nro_min_gap: gap,
            ..Default::default()
        }
    }

    #[test]
    fn what_an_option_may_say() {
        let judge =
            |bits, max, initial, gap| Wanted::judge(&option(bits, max, initial, gap), 2048).map_err(|r| r.errno);
        let good = |mask, max, initial, headroom| Ok(Wanted { offsets: Offsets { mask, max }, initial, headroom });
        assert_eq!(judge(0, 0, 0, 0), good(u64::MAX, 0, 0, 0));
        assert_eq!(judge(64, 2048, 2048, 0), good(u64::MAX, 2048, 2048, 2048));
        assert_eq!(judge(8, 255, 10, 0), good(255, 255, 10, 255));
        assert_eq!(judge(16, 100, 0, 1500), good(65535, 100, 0, 548));
        assert_eq!(judge(16, 100, 0, u64::MAX), good(65535, 100, 0, 100));
        for (bits, max, initial) in
            [(65, 0, 0), (u32::MAX, 0, 0), (0, 2049, 0), (0, u64::MAX, 0), (8, 256, 0), (1, 2, 0), (0, 10, 11)]
        {
            assert_eq!(judge(bits, max, initial, 0), Err(EINVAL), "{bits} {max} {initial}");
        }
        assert_eq!(judge(0, 10, u64::MAX, 0), Err(EINVAL));
    }
}
