// SPDX-License-Identifier: BSD-2-Clause
//! Knobs: netmap's settings, which its users set with sysctl, or in /sys/module/netmap/parameters.
//!
//! One table has each knob with its bounds, when a new value applies, and its meaning. A value comes from the
//! command line, else from the configuration file, until the daemon's owner sets another. That lasts until the daemon
//! exits, or reads a file that was changed there.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use unetmap_core::control::vale::ThreadConfig;
use unetmap_core::errno::{EINVAL, ENOENT, EPERM};
use unetmap_mem::Geometry;
use unetmap_suggest::did_you_mean;
use unetmap_switch::fdb::{DEFAULT_ENTRIES, MAX_ENTRIES};
use unetmap_sys::xsk::ZERO_COPY_BUFFER;

use crate::privileged;
use crate::refusal::{Refusal, refuse};
use crate::region::Sizes;
use crate::tuning::nic::QUEUE_STALL;
use crate::tuning::region::INTERFACES_BUFS;
use crate::written::{self, Written, Wrong, wrong};

/// The configuration file of root's daemon, unless the command line names another.
pub(crate) const DEFAULT_PATH: &str = "/etc/unetmap/unetmapd.toml";

/// Where interfaces' XDP programs are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub(crate) enum Admode {
    /// In the driver if it supports that, else before the stack.
    Best,
    /// In the driver, or not at all.
    Native,
    /// Before the stack, even if the driver supports XDP.
    Generic,
}

/// When a new value applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Applies {
    Now,
    /// To ports that are opened from then on.
    Open,
    /// To regions that are made from then on.
    Region,
    /// It is stored and returned, so that scripts for netmap run, and has no effect.
    Never,
    /// It cannot be set.
    #[serde(rename = "read-only")]
    ReadOnly,
}

pub(crate) struct Knob {
    pub(crate) name: &'static str,
    default: u64,
    range: RangeInclusive<u64>,
    applies: Applies,
    about: &'static str,
}

impl Knob {
    pub(crate) fn can_be_set(&self) -> bool {
        self.applies != Applies::ReadOnly
    }
}

const fn knob(
    name: &'static str,
    default: u64,
    range: RangeInclusive<u64>,
    applies: Applies,
    about: &'static str,
) -> Knob {
    Knob { name, default, range, applies, about }
}

const fn wide(range: &RangeInclusive<u32>) -> RangeInclusive<u64> {
    *range.start() as u64..=*range.end() as u64
}

/// The number of objects in a pool, or the bytes of one, in the region of interfaces or in other regions.
const fn size(name: &'static str, default: u32, range: &RangeInclusive<u32>, about: &'static str) -> Knob {
    knob(name, default as u64, wide(range), Applies::Region, about)
}

/// A value in use, which can only be read.
const fn current(name: &'static str, about: &'static str) -> Knob {
    knob(name, 0, ANY, Applies::ReadOnly, about)
}

/// A knob of a feature that only netmap has.
const fn foreign(name: &'static str, default: u64, range: RangeInclusive<u64>, about: &'static str) -> Knob {
    knob(name, default, range, Applies::Never, about)
}

/// netmap's values are of type int.
const ANY: RangeInclusive<u64> = 0..=i32::MAX as u64;
const YES_NO: RangeInclusive<u64> = 0..=1;
/// A sink takes memory only while it is open.
const MAX_SINKS: u64 = 64;

/// The sizes of regions. Those of interfaces have fewer buffers, as all of them are locked in memory.
const REGION: Sizes = Sizes::DEFAULT;
const PRIVATE: Sizes = Sizes::PRIVATE;

pub(crate) static KNOBS: [Knob; 39] = [
    knob("verbose", 0, ANY, Applies::Now, "log: 0 as --log says, 1 also served and refused requests, above that all"),
    knob("admode", 0, 0..=2, Applies::Open, "interfaces: 0 in the driver, else before the stack, 1 and 2 only so"),
    knob("fwd", 0, YES_NO, Applies::Open, "interfaces: forward released packets, as with NS_FORWARD"),
    knob("no_timestamp", 0, YES_NO, Applies::Open, "1: ring->ts only of rings with NR_TIMESTAMP"),
    knob(
        "bypass_stall",
        QUEUE_STALL.as_millis() as u64,
        100..=10_000,
        Applies::Now,
        "interfaces with a bypass: milliseconds for which a program may leave frames in a queue",
    ),
    knob("vale_kernel", 0, YES_NO, Applies::Now, "persistent ports: the kernel forwards what needs no switch thread"),
    size("if_num", REGION.ifs.0, &Geometry::IF_COUNT, "interfaces: sessions"),
    size("if_size", REGION.ifs.1, &Geometry::IF_SIZE, "interfaces: bytes of a session's description"),
    size("ring_num", REGION.rings.0, &Geometry::RING_COUNT, "interfaces: rings"),
    size("ring_size", REGION.rings.1, &Geometry::RING_SIZE, "interfaces: bytes of a ring, 16 a slot and 256"),
    size("buf_num", INTERFACES_BUFS, &Geometry::BUF_COUNT, "interfaces: buffers; unless set more for long rings"),
    size(
        "buf_size",
        REGION.bufs.1,
        &Geometry::BUF_SIZE,
        "interfaces: bytes of a buffer, 1792 to 4096; zero copy needs 4096",
    ),
    size("priv_if_num", PRIVATE.ifs.0, &Geometry::IF_COUNT, "other regions: sessions"),
    size("priv_if_size", PRIVATE.ifs.1, &Geometry::IF_SIZE, "other regions: bytes of a session's description"),
    size(
        "priv_ring_num",
        PRIVATE.rings.0,
        &Geometry::RING_COUNT,
        "other regions: rings, and more if a port needs them",
    ),
    size(
        "priv_ring_size",
        PRIVATE.rings.1,
        &Geometry::RING_SIZE,
        "other regions: bytes of a ring, and more for longer",
    ),
    size("priv_buf_num", PRIVATE.bufs.0, &Geometry::BUF_COUNT, "other regions: buffers, and more if a port needs them"),
    size("priv_buf_size", PRIVATE.bufs.1, &Geometry::BUF_SIZE, "other regions: bytes of a buffer"),
    current("if_curr_num", "of the region of interfaces that exists now"),
    current("if_curr_size", "the same"),
    current("ring_curr_num", "the same"),
    current("ring_curr_size", "the same"),
    current("buf_curr_num", "the same"),
    current("buf_curr_size", "the same"),
    knob("max_bridges", 65_536, ANY, Applies::ReadOnly, "switches of all users; allocated when they are created"),
    knob("sink_delay_ns", 0, ANY, Applies::Open, "sinks (netmap:nmsink0): nanoseconds that each sent slot takes"),
    knob("sink_num", 4, 0..=MAX_SINKS, Applies::Open, "sinks that exist, nmsink0 and so on"),
    foreign("bridge_batch", 1024, 1..=1024, "a switch moves up to 512 slots at once, as many as are available"),
    foreign("debug", 0, ANY, "debug builds of the original only; verbose logs everything here"),
    foreign("default_pipes", 0, ANY, "pipes allocate their rings when opened, as in the original"),
    foreign("generic_mit", 100_000, ANY, "no timer delays interrupts: ethtool -C is the driver's own"),
    foreign("generic_ringsize", 1024, 2..=4096, "emulated interfaces have the slots that the request asks for"),
    foreign("generic_rings", 1, 1..=64, "emulated interfaces have their real queues (ethtool -L)"),
    foreign("generic_hwcsum", 0, YES_NO, "no checksum is computed for sent packets"),
    foreign("generic_txqdisc", 1, YES_NO, "packets never enter a queueing discipline"),
    foreign("no_pendintr", 1, YES_NO, "each sync reads the rings' current positions"),
    foreign(
        "txsync_retry",
        2,
        ANY,
        "a switch waits for a full receiver once a batch, if another thread can run meanwhile",
    ),
    foreign("ptnet_vnet_hdr", 1, YES_NO, "there are no ptnet devices"),
    foreign("ptnet_gso", 1, YES_NO, "there are no ptnet devices"),
];

/// The values of all knobs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knobs {
    /// Knobs that were set.
    values: BTreeMap<&'static str, u64>,
    /// The values with which the daemon was started.
    initial: BTreeMap<&'static str, u64>,
    /// The switches' threads according to the file.
    plan: ThreadConfig,
    /// Addresses that a switch learns, according to the file.
    addresses: Option<u32>,
}

/// Where the initial values come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnobSources {
    /// The configuration file.
    pub(crate) file: Option<PathBuf>,
    /// Options of the command line: sizes of all regions, without the prefix.
    pub(crate) sizes: Vec<(&'static str, u32)>,
    /// The option `--admode`.
    pub(crate) admode: Option<Admode>,
}

impl KnobSources {
    /// Returns the knobs that the command line sets, else the file.
    ///
    /// # Errors
    /// One sentence; it begins with the file, and the line if there is one.
    pub(crate) fn load(&self) -> Result<Knobs, String> {
        let knobs = self.file.as_deref().map_or_else(|| Ok(Knobs::default()), Knobs::load)?;
        knobs.with_options(&self.sizes, self.admode).map_err(|refusal| refusal.why)
    }
}

/// A change of a knob in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct KnobChange {
    knob: &'static str,
    before: u64,
    now: u64,
}

/// A knob in JSON.
#[derive(Serialize)]
pub(crate) struct KnobSnapshot {
    knob: &'static str,
    value: u64,
    default: u64,
    least: u64,
    most: u64,
    applies: Applies,
    about: &'static str,
}

/// The contents of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    knobs: BTreeMap<Spanned<String>, Written>,
    vale: Option<Spanned<ValeSection>>,
}

/// The threads of the switches, and the size of their MAC tables.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValeSection {
    threads: Option<u16>,
    #[serde(default)]
    cpus: Vec<u16>,
    addresses: Option<u32>,
}

impl Knobs {
    /// Returns the knobs that a file sets; the defaults if there is no file.
    ///
    /// # Errors
    /// One sentence that begins with the file, and the line if there is one.
    pub(crate) fn load(path: &Path) -> Result<Knobs, String> {
        let bytes = privileged::configuration(path).map_err(|why| format!("{}: {why}", path.display()))?;
        Knobs::of_bytes(path, &bytes)
    }

    /// As [`Knobs::load`], of the file's contents.
    pub(crate) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Knobs, String> {
        written::read(path, bytes, Knobs::of_text)
    }

    fn of_text(text: &str) -> Result<Knobs, Wrong> {
        let file: ConfigFile = written::parse(text, "unetmapd(8)")?;
        let mut knobs = Knobs::default();
        for (name, value) in &file.knobs {
            let (at, name, value) = (name.span(), name.get_ref(), value.to_string());
            let number = unetmap_quantity::knob(name, &value).or_else(|why| {
                wrong(&at, format!("{name} is `{value}`: {why}; unetmapd(8) shows how it is written"))
            })?;
            knobs.set(name, number).or_else(|refusal| wrong(&at, refusal.why))?;
        }
        if let Some(vale) = file.vale {
            let at = vale.span();
            let ValeSection { threads, cpus, addresses } = vale.into_inner();
            if let Some(n) = addresses.filter(|n| !(1..=MAX_ENTRIES).contains(&(*n as usize))) {
                return wrong(&at, format!("{n} addresses: a switch can learn 1 to {MAX_ENTRIES}"));
            }
            knobs.addresses = addresses;
            // If only processors are listed, there is a thread on each.
            let threads = threads.unwrap_or(u16::try_from(cpus.len().max(1)).unwrap_or(u16::MAX));
            knobs.plan = ThreadConfig { threads, cpus };
            knobs.plan.check().or_else(|why| wrong(&at, why))?;
        }
        knobs.check_regions().map_err(|refusal| Wrong { at: None, why: refusal.why })?;
        Ok(knobs.into_initial())
    }

    /// Returns these knobs with the options of the command line: sizes of all regions, and the mode.
    ///
    /// # Errors
    /// A value is out of bounds.
    pub(crate) fn with_options(mut self, options: &[(&str, u32)], admode: Option<Admode>) -> Result<Knobs, Refusal> {
        for (name, value) in options {
            self.set(name, u64::from(*value))?;
            self.set(&format!("priv_{name}"), u64::from(*value))?;
        }
        if let Some(admode) = admode {
            self.set("admode", admode as u64)?;
        }
        self.check_regions()?;
        Ok(self.into_initial())
    }

    /// The switches' threads when the daemon is started.
    pub(crate) fn thread_plan(&self) -> &ThreadConfig {
        &self.plan
    }

    /// Addresses that each switch learns at most.
    pub(crate) fn switch_addresses(&self) -> usize {
        self.addresses.map_or(0, |n| n as usize).max(DEFAULT_ENTRIES).next_power_of_two()
    }

    fn into_initial(mut self) -> Knobs {
        self.initial = self.values.clone();
        self
    }

    /// Takes over the values of `fresh`, which was read from the same sources again, that differ from those of the last
    /// time. Other knobs keep their values, which may have been set since. Returns the changes.
    ///
    /// # Errors
    /// No region could be created with the new values, together with those that were set since. Nothing is changed.
    pub(crate) fn reload(&mut self, fresh: Knobs) -> Result<Vec<KnobChange>, Refusal> {
        let mut reloaded = Knobs { plan: fresh.plan, ..self.clone() };
        for knob in KNOBS.iter().filter(|knob| self.initial.get(knob.name) != fresh.initial.get(knob.name)) {
            match fresh.initial.get(knob.name) {
                Some(value) => reloaded.values.insert(knob.name, *value),
                None => reloaded.values.remove(knob.name),
            };
        }
        reloaded.initial = fresh.initial;
        reloaded.check_regions()?;
        let change = |knob: &Knob| {
            let (before, now) = (self.value(knob), reloaded.value(knob));
            (before != now).then_some(KnobChange { knob: knob.name, before, now })
        };
        let changes = KNOBS.iter().filter_map(change).collect();
        *self = reloaded;
        Ok(changes)
    }

    /// The values that were set since the daemon was started.
    pub(crate) fn set_since(&self) -> Vec<(String, u64)> {
        let was_set = |knob: &&Knob| self.initial.get(knob.name).unwrap_or(&knob.default) != &self.value(knob);
        KNOBS.iter().filter(was_set).map(|knob| (knob.name.to_owned(), self.value(knob))).collect()
    }

    /// Sets the values that an earlier daemon had. Those of knobs that no longer exist are left out.
    pub(crate) fn take_over(&mut self, values: &[(String, u64)]) {
        for (name, value) in values {
            if let Err(refusal) = self.set(name, *value) {
                tracing::warn!(name, value, "a knob keeps its initial value: {}", refusal.why);
            }
        }
    }

    /// Whether a value was changed since the daemon was started. It would be lost if the daemon ended.
    pub(crate) fn changed(&self) -> bool {
        !self.set_since().is_empty()
    }

    /// The value of a knob.
    pub(crate) fn value(&self, knob: &Knob) -> u64 {
        self.values.get(knob.name).copied().unwrap_or(knob.default)
    }

    fn get(&self, name: &str) -> u64 {
        KNOBS.iter().find(|knob| knob.name == name).map_or(0, |knob| self.value(knob))
    }

    fn get_u32(&self, name: &str) -> u32 {
        u32::try_from(self.get(name)).unwrap_or(u32::MAX)
    }

    /// Where interfaces' XDP programs are attached.
    pub(crate) fn admode(&self) -> Admode {
        match self.get("admode") {
            0 => Admode::Best,
            1 => Admode::Native,
            _ => Admode::Generic,
        }
    }

    /// Whether all packets that programs release in receive rings of interfaces are forwarded to the other side, also
    /// without NR_FORWARD and NS_FORWARD. It applies to interfaces that are opened from now on.
    pub(crate) fn fwd(&self) -> bool {
        self.get("fwd") != 0
    }

    /// Whether only receive rings with NR_TIMESTAMP get a timestamp.
    pub(crate) fn no_timestamp(&self) -> bool {
        self.get("no_timestamp") != 0
    }

    /// Time for which a program may leave frames in a queue of an interface with a bypass.
    pub(crate) fn bypass_stall(&self) -> Duration {
        Duration::from_millis(self.get("bypass_stall"))
    }

    /// Whether the kernel may forward packets between persistent ports in place of the switches' threads.
    pub(crate) fn vale_kernel(&self) -> bool {
        self.get("vale_kernel") != 0
    }

    /// Nanoseconds that a sink which is opened from now on takes for each slot.
    pub(crate) fn sink_delay_ns(&self) -> u64 {
        self.get("sink_delay_ns")
    }

    /// The number of sinks.
    pub(crate) fn sink_num(&self) -> u32 {
        self.get_u32("sink_num")
    }

    fn sizes(&self, prefix: &str) -> Sizes {
        let pool =
            |what: &str| (self.get_u32(&format!("{prefix}{what}_num")), self.get_u32(&format!("{prefix}{what}_size")));
        Sizes { ifs: pool("if"), rings: pool("ring"), bufs: pool("buf") }
    }

    /// The log level, 0 to 2.
    pub(crate) fn verbose(&self) -> u64 {
        self.get("verbose")
    }

    /// Returns the sizes of the region that interfaces and their pipes share, for a first interface with `slots` slots.
    /// Unless the number of buffers was set, three such interfaces have room. `zero_copy`: whether the interface's
    /// driver supports that.
    pub(crate) fn interface_sizes(&self, slots: u32, zero_copy: bool) -> Sizes {
        let (sizes, size) = (self.sizes(""), self.interface_buffer(zero_copy));
        if self.values.contains_key("buf_num") {
            let larger = Sizes { bufs: (sizes.bufs.0, size), ..sizes };
            // Buffers for zero copy are larger than those that the number was checked with.
            return if larger.bytes().is_ok() { larger } else { sizes };
        }
        // Larger buffers are fewer, in as many bytes: all are locked in memory.
        let number = sizes.bufs.0 / size.div_ceil(sizes.bufs.1);
        Sizes { bufs: (number.max(slots.saturating_mul(3)), size), ..sizes }
    }

    /// Bytes of an interface's buffers. Unless they were set, they are those that zero copy needs if the driver
    /// supports that.
    fn interface_buffer(&self, zero_copy: bool) -> u32 {
        match zero_copy && !self.values.contains_key("buf_size") {
            true => ZERO_COPY_BUFFER,
            false => self.get_u32("buf_size"),
        }
    }

    /// Returns the sizes of other regions, before they are enlarged for the port that they are created for.
    pub(crate) fn private_sizes(&self) -> Sizes {
        self.sizes("priv_")
    }

    /// Returns these sizes for the regions of a mediated interface, whose buffers have the size of an interface's.
    pub(crate) fn mediated_sizes(&self, zero_copy: bool) -> Sizes {
        let private = self.private_sizes();
        Sizes { bufs: (private.bufs.0, self.interface_buffer(zero_copy)), ..private }
    }

    /// Returns the sizes of a region in a program's memory (EXTMEM) for which the program requests none. Unless knobs
    /// were set they are netmap's: in such memory pages that are never used take memory, too.
    pub(crate) fn extmem_sizes(&self) -> Sizes {
        let set = |name: &'static str, original: u32| match self.values.contains_key(name) {
            true => self.get_u32(name),
            false => original,
        };
        Sizes {
            ifs: (set("priv_if_num", 2), set("priv_if_size", 1024)),
            rings: (set("priv_ring_num", 4), set("priv_ring_size", 5 << 12)),
            bufs: (set("priv_buf_num", 4098), set("priv_buf_size", 2048)),
        }
    }

    /// Sets a knob, within its bounds.
    fn set(&mut self, name: &str, value: u64) -> Result<(), Refusal> {
        let knob = find(name)?;
        if knob.applies == Applies::ReadOnly {
            return refuse(EPERM, format!("{name} is read-only ({})", knob.about));
        }
        if !knob.range.contains(&value) {
            let (least, most) = (knob.range.start(), knob.range.end());
            return refuse(EINVAL, format!("{name} is {value}, allowed are {least} to {most}"));
        }
        self.values.insert(knob.name, value);
        Ok(())
    }

    /// Refuses sizes of which no region can be created.
    fn check_regions(&self) -> Result<(), Refusal> {
        for (what, sizes) in [("interfaces", self.interface_sizes(0, false)), ("others", self.private_sizes())] {
            Geometry::new(sizes.ifs, sizes.rings, sizes.bufs)
                .or_else(|why| refuse(EINVAL, format!("no region of {what} could be created: {why}")))?;
        }
        Ok(())
    }

    /// Sets a knob, unless no region could be created with the new value.
    pub(crate) fn set_checked(&mut self, name: &str, value: u64) -> Result<(), Refusal> {
        let mut changed = self.clone();
        changed.set(name, value)?;
        changed.check_regions()?;
        *self = changed;
        Ok(())
    }

    /// Returns the knob in JSON. `current` is the value in use, for a knob that only shows it.
    pub(crate) fn snapshot(&self, knob: &Knob, current: Option<u64>) -> KnobSnapshot {
        let value = current.unwrap_or_else(|| self.value(knob));
        let (least, most) = match knob.applies {
            Applies::ReadOnly => (value, value),
            _ => (*knob.range.start(), *knob.range.end()),
        };
        let Knob { name, default, applies, about, .. } = *knob;
        KnobSnapshot { knob: name, value, default, least, most, applies, about }
    }
}

/// Returns the knob of that name, which may begin as sysctl(8) has it.
pub(crate) fn find(name: &str) -> Result<&'static Knob, Refusal> {
    let name = name.strip_prefix("dev.netmap.").unwrap_or(name);
    match KNOBS.iter().find(|knob| knob.name == name) {
        Some(knob) => Ok(knob),
        None => {
            let meant = did_you_mean(name, KNOBS.iter().map(|knob| knob.name));
            refuse(ENOENT, format!("there is no such knob (unetmap get lists them){meant}"))
        }
    }
}

#[cfg(any(test, fuzzing))]
impl Knobs {
    /// Returns knobs with these sizes for all regions.
    pub(crate) fn of_sizes(sizes: Sizes) -> Knobs {
        let Sizes { ifs, rings, bufs } = sizes;
        let names = ["if_num", "if_size", "ring_num", "ring_size", "buf_num", "buf_size"];
        let values = [ifs.0, ifs.1, rings.0, rings.1, bufs.0, bufs.1];
        let options: Vec<_> = names.into_iter().zip(values).collect();
        Knobs::default().with_options(&options, None).unwrap()
    }
}

#[cfg(test)]
mod tests;
