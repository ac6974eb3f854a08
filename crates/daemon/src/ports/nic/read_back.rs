// SPDX-License-Identifier: BSD-2-Clause
//! Offloads of an interface that are switched off while a port is open, and read back: some drivers cannot switch them
//! off, or say that they did and did not. Frames that arrive unfinished or merged there are completed by the kernel on
//! a veth ([`super::relay`]), or before Linux 6.6 by packet sockets ([`super::packets`]).
//!
//! ```text
//! before a program is attached   offloads that the driver says stay on, and tags that it still removes
//! in generic mode                all of them: the stack and the kernel were to switch them off
//! ```
//! A driver that runs the program itself hands frames to it before it would complete them: it refuses, or switches its
//! own off.

use std::io;

use unetmap_sys::link::{ActiveOffload, DriverInfo, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::Way;

use super::Nic;
use super::faults::FrameWatch;
use crate::privileged::{self, Undo, Xdp};
use crate::refusal::Refusal;

/// Why frames arrive unfinished at an interface before any program is attached, if they do.
pub(super) fn lasting(netns: &Netns, link: &Link) -> Option<String> {
    // Frames of the other kinds are completed on a veth in any case, or are a veth's, whose peer has the offloads.
    if link.kind.is_some() {
        return None;
    }
    let offloads = privileged::received_offloads(netns, &link.name);
    let offloads = offloads.inspect_err(|e| tracing::debug!(name = link.name, "its offloads: {e}")).ok()?;
    let fixed = offloads.into_iter().filter(|offload| !offload.changeable && offload.name != "rx-checksum");
    sentence(fixed.map(|offload| offload.name), "cannot be switched off")
}

/// Why frames arrive unfinished although an XDP program was attached in generic mode, if they do.
fn lasting_in_generic_mode(driver: Option<&DriverInfo>, offloads: Vec<ActiveOffload>) -> Option<String> {
    let leaves_checksums = driver.is_some_and(DriverInfo::leaves_checksums);
    let on = offloads.into_iter().map(|offload| offload.name).filter(|name| name != "rx-checksum" || leaves_checksums);
    sentence(on, "stays on while an XDP program is attached in generic mode")
}

fn sentence(names: impl Iterator<Item = String>, why: &str) -> Option<String> {
    let names: Vec<String> = names.collect();
    let is_checksum = |name: &String| name == "rx-checksum";
    let what = match (names.iter().any(|name| name.contains("vlan")), names.iter().all(is_checksum)) {
        (_, true) => "frames arrive with unfinished checksums",
        (true, _) => "frames arrive without their VLAN tags",
        (false, false) => "frames arrive merged",
    };
    (!names.is_empty()).then(|| format!("{what}, as {} {why}", names.join(", ")))
}

impl Nic {
    /// Disables the offloads that hide parts of frames, and takes note of what stays on.
    pub(super) fn disable_offloads(&mut self) {
        if self.offloads.is_some() {
            return;
        }
        let disabled = privileged::disable_offloads(&self.netns, self.key.index);
        self.offloads_stay_on = disabled.is_err();
        let link = privileged::link(&self.netns, self.key.index).ok().flatten();
        let failed = disabled.as_ref().err().map(ToString::to_string);
        let lasts = link.filter(|link| link.kind.is_none()).and_then(|link| lasting(&self.netns, &link).or(failed));
        self.unfinished = self.found.as_ref().map(|found| found.why.clone()).or(lasts);
        self.offloads = disabled.map_or_else(|e| self.offloads_stay(&e), |undo| undo.map(Undo::of));
    }

    /// Tells that the offloads stay enabled: frames may lack tags and checksums, unless a relay completes them.
    fn offloads_stay(&self, e: &io::Error) -> Option<Undo> {
        let name = &self.name;
        tracing::warn!(
            name,
            "its offloads stay enabled: {e} (disable them by hand: on a veth, ethtool -K PEER tx off txvlan off; else \
             ethtool -K {name} rxvlan off)"
        );
        None
    }

    /// Disables GRO, for generic mode.
    pub(super) fn disable_merging(&mut self) {
        if self.merging.is_none() {
            let disabled = privileged::disable_merging(&self.netns, self.key.index, &*self.name);
            let disabled = disabled.inspect_err(|e| tracing::warn!("offloads stay as they are: {e}"));
            self.merging = disabled.ok().flatten().map(Undo::of);
        }
    }

    /// Attaches the XDP program to the interface itself, unless frames arrive unfinished there in generic mode.
    pub(super) fn attach_and_read_back(&mut self) -> Result<Xdp, Refusal> {
        let xdp = self.attach_to_interface()?;
        if xdp.mode() == Mode::Native {
            return Ok(xdp);
        }
        self.disable_merging();
        let is_device = privileged::link(&self.netns, self.key.index).ok().flatten().is_some_and(|l| l.kind.is_none());
        if !is_device || self.unfinished.is_some() {
            return Ok(xdp);
        }
        let driver = privileged::driver(&self.netns, &self.name).ok().flatten();
        let offloads = privileged::received_offloads(&self.netns, &self.name).unwrap_or_default();
        self.unfinished = lasting_in_generic_mode(driver.as_ref(), offloads);
        match &self.unfinished {
            Some(_) if matches!(self.way, Way::Auto | Way::Copy) => {
                drop(xdp);
                self.attach_behind_relay().map_or_else(|| self.attach_to_interface(), Ok)
            }
            Some(why) => {
                tracing::warn!(name = self.name, "{why} (another way: unetmap nic {} way auto)", self.name);
                Ok(xdp)
            }
            None => Ok(xdp),
        }
    }
}

impl Nic {
    /// Has the frames of its XDP program looked at from now on, but for those of a hidden end, which are as the other
    /// end's user wants them.
    pub(super) fn watch_frames(&mut self) {
        let Some(xdp) = self.xdp.as_ref().filter(|_| !self.is_hidden) else { return };
        let watch = FrameWatch::new(self.key, xdp.deadline(), self.mtu);
        // The first frames count.
        watch.look();
        self.heartbeat.watch(&watch);
        self.frames_watch = Some(watch);
    }

    /// The fault that was found, and that is still there: it has been opened in no other way since.
    pub(super) fn found_fault(&self) -> Option<String> {
        let found = self.found.as_ref().filter(|found| self.unfinished.as_ref() != Some(&found.why))?;
        Some(format!("{}: it is opened in another way after all programs have closed it", found.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str) -> DriverInfo {
        let [version, firmware, bus] = std::array::from_fn(|_| String::new());
        DriverInfo { name: name.into(), version, firmware, bus, built_in: false }
    }

    #[test]
    fn each_offload_that_stays_on_is_named_with_its_effect() {
        let on = |names: &[&str]| -> Vec<ActiveOffload> {
            names.iter().map(|name| ActiveOffload { name: (*name).into(), changeable: true }).collect()
        };
        let generic = |of: &str, names: &[&str]| lasting_in_generic_mode(Some(&driver(of)), on(names));
        assert_eq!(generic("e1000e", &["rx-checksum"]), None, "the device verifies");
        assert!(
            generic("virtio_net", &["rx-checksum"]).unwrap().starts_with("frames arrive with unfinished checksums")
        );
        let merged = generic("e1000e", &["rx-lro", "rx-checksum"]).unwrap();
        assert_eq!(merged, "frames arrive merged, as rx-lro stays on while an XDP program is attached in generic mode");
        let tags = sentence(["rx-vlan-hw-parse".to_owned()].into_iter(), "cannot be switched off").unwrap();
        assert_eq!(tags, "frames arrive without their VLAN tags, as rx-vlan-hw-parse cannot be switched off");
    }
}
