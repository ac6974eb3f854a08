//! netmap's knobs: what its users turn with sysctl, or in /sys/module/netmap/parameters.
//!
//! Each stands in one table with its bounds, when it applies and what it does. A value is that of the configuration file,
//! else of the command line, until the daemon's owner sets another; all are gone with the daemon.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use unetmap::errno::{EINVAL, EIO, ENOENT, EPERM};
use unetmap::knobs::Wish;
use unetmap::vale::ask::Plan;
use unetmap_mem::Geometry;
use unetmap_sys::process;
use unetmap_sys::socket::Peer;

use crate::books::Books;
use crate::caller::Caller;
use crate::log;
use crate::policy;
use crate::refusal::{Refusal, refuse};
use crate::region::Sizes;

/// Where the file is, of root's daemon, unless it is told otherwise.
pub(crate) const DEFAULT_PATH: &str = "/etc/unetmap/unetmapd.toml";

/// How interfaces are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Admode {
    /// In the driver if it can, else before the stack.
    Best,
    /// In the driver, or not at all.
    Native,
    /// Before the stack, though the driver may be able to do better.
    Generic,
}

/// When a value that was set begins to count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Applies {
    Now,
    /// To ports that are opened from then on.
    Open,
    /// To regions that are made from then on.
    Region,
    /// It is kept and told, so that scripts for netmap run, and changes nothing.
    Never,
    /// It cannot be set.
    #[serde(rename = "read-only")]
    ReadOnly,
}

struct Knob {
    name: &'static str,
    default: u64,
    range: RangeInclusive<u64>,
    applies: Applies,
    about: &'static str,
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

/// A count of objects, or bytes of one, of the region of interfaces or of a private one.
const fn size(name: &'static str, default: u32, range: &RangeInclusive<u32>, about: &'static str) -> Knob {
    knob(name, default as u64, wide(range), Applies::Region, about)
}

/// What is in use, and told only.
const fn current(name: &'static str, about: &'static str) -> Knob {
    knob(name, 0, ANY, Applies::ReadOnly, about)
}

/// One that turns what only the original has.
const fn foreign(name: &'static str, default: u64, range: RangeInclusive<u64>, about: &'static str) -> Knob {
    knob(name, default, range, Applies::Never, about)
}

/// The original's numbers are ints.
const ANY: RangeInclusive<u64> = 0..=i32::MAX as u64;
const YES_NO: RangeInclusive<u64> = 0..=1;

/// Of private regions; those of interfaces have fewer buffers, as all of these are locked in memory.
const REGION: Sizes = Sizes::DEFAULT;
/// Buffers that interfaces share: 64 MiB at 2 KiB each.
const INTERFACES_BUFS: u32 = 32_768;

static KNOBS: [Knob; 37] = [
    knob("verbose", 0, ANY, Applies::Now, "log: 0 as --log says, 1 also what is served and refused, above that all"),
    knob("admode", 0, 0..=2, Applies::Open, "interfaces: 0 in the driver, else before the stack, 1 and 2 only so"),
    knob("fwd", 0, YES_NO, Applies::Open, "interfaces: what programs give back goes on, as with NS_FORWARD"),
    knob("no_timestamp", 0, YES_NO, Applies::Open, "1: ring->ts only of rings with NR_TIMESTAMP"),
    size("if_num", REGION.ifs.0, &Geometry::IF_COUNT, "interfaces: sessions"),
    size("if_size", REGION.ifs.1, &Geometry::IF_SIZE, "interfaces: bytes of a session's description"),
    size("ring_num", REGION.rings.0, &Geometry::RING_COUNT, "interfaces: rings"),
    size("ring_size", REGION.rings.1, &Geometry::RING_SIZE, "interfaces: bytes of a ring, 16 a slot and 256"),
    size("buf_num", INTERFACES_BUFS, &Geometry::BUF_COUNT, "interfaces: buffers; unless set more for long rings"),
    size("buf_size", REGION.bufs.1, &Geometry::BUF_SIZE, "interfaces: bytes of a buffer; they take 1792 to 3840"),
    size("priv_if_num", REGION.ifs.0, &Geometry::IF_COUNT, "other regions: sessions"),
    size("priv_if_size", REGION.ifs.1, &Geometry::IF_SIZE, "other regions: bytes of a session's description"),
    size("priv_ring_num", REGION.rings.0, &Geometry::RING_COUNT, "other regions: rings, and more if a port needs them"),
    size("priv_ring_size", REGION.rings.1, &Geometry::RING_SIZE, "other regions: bytes of a ring, and more for longer"),
    size("priv_buf_num", REGION.bufs.0, &Geometry::BUF_COUNT, "other regions: buffers, and more if a port needs them"),
    size("priv_buf_size", REGION.bufs.1, &Geometry::BUF_SIZE, "other regions: bytes of a buffer"),
    current("if_curr_num", "of the region of interfaces that is there now"),
    current("if_curr_size", "the same"),
    current("ring_curr_num", "the same"),
    current("ring_curr_size", "the same"),
    current("buf_curr_num", "the same"),
    current("buf_curr_size", "the same"),
    knob("max_bridges", 65_536, ANY, Applies::ReadOnly, "switches of all users; no array of them is made beforehand"),
    knob("sink_delay_ns", 0, ANY, Applies::ReadOnly, "there is no test sink; a NULL port is one"),
    knob("sink_num", 0, ANY, Applies::ReadOnly, "there is no test sink; a NULL port is one"),
    foreign("bridge_batch", 1024, 1..=1024, "a switch moves up to 512 slots in one go, as many as are there"),
    foreign("debug", 0, ANY, "of the original's debug builds; verbose tells all that there is"),
    foreign("default_pipes", 0, ANY, "pipes take their rings when they are opened, in the original too"),
    foreign("generic_mit", 100_000, ANY, "no timer delays interrupts: ethtool -C is the driver's own"),
    foreign("generic_ringsize", 1024, 2..=4096, "emulated interfaces have the slots that the request asks for"),
    foreign("generic_rings", 1, 1..=64, "emulated interfaces have their real queues (ethtool -L)"),
    foreign("generic_hwcsum", 0, YES_NO, "no sum is computed for what a port sends"),
    foreign("generic_txqdisc", 1, YES_NO, "packets never enter a queueing discipline"),
    foreign("no_pendintr", 1, YES_NO, "each sync looks at the rings as they are"),
    foreign("txsync_retry", 2, ANY, "a switch waits for a full receiver once a batch, if somebody can run meanwhile"),
    foreign("ptnet_vnet_hdr", 1, YES_NO, "there are no ptnet devices"),
    foreign("ptnet_gso", 1, YES_NO, "there are no ptnet devices"),
];

/// All values: those that were set, over the defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knobs {
    set: BTreeMap<&'static str, u64>,
    /// As the daemon was started.
    begun: BTreeMap<&'static str, u64>,
    /// What the file says of the switches' threads.
    plan: Plan,
}

/// A knob as it is told.
#[derive(Serialize)]
struct Told {
    knob: &'static str,
    value: u64,
    default: u64,
    least: u64,
    most: u64,
    applies: Applies,
    about: &'static str,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    knobs: BTreeMap<Spanned<String>, Spanned<u64>>,
    vale: Option<Spanned<Vale>>,
}

/// Of the switches: their threads.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vale {
    threads: Option<u16>,
    #[serde(default)]
    cpus: Vec<u16>,
}

impl Knobs {
    /// The knobs as a file says; the defaults where there is no file.
    ///
    /// # Errors
    /// One sentence that begins with the file, and the line where there is one.
    pub(crate) fn load(path: &Path) -> Result<Knobs, String> {
        let at_line = |bytes: &[u8], at: usize, why: &str| {
            Err(format!("{}:{}: {why}", path.display(), policy::line_of(bytes, at)))
        };
        let bytes =
            policy::read(path, process::uid(), "configuration").map_err(|why| format!("{}: {why}", path.display()))?;
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(e) => return at_line(&bytes, e.valid_up_to(), "this is not UTF-8 text; save the file as such"),
        };
        let written: Written = match toml::from_str(text) {
            Ok(written) => written,
            Err(e) => {
                let why = e.message().trim().replace('\n', ", ");
                let at = e.span().map_or(0, |span| span.start);
                return at_line(&bytes, at, &format!("{why}; unetmapd(8) shows how it is written"));
            }
        };
        let mut knobs = Knobs::default();
        for (name, value) in &written.knobs {
            if let Err(refusal) = knobs.put(name.get_ref(), *value.get_ref()) {
                return at_line(&bytes, name.span().start, &refusal.why);
            }
        }
        if let Some(vale) = written.vale {
            let at = vale.span().start;
            let Vale { threads, cpus } = vale.into_inner();
            // Who names processors and nothing else wants a thread on each.
            let threads = threads.unwrap_or(u16::try_from(cpus.len().max(1)).unwrap_or(u16::MAX));
            knobs.plan = Plan { threads, cpus };
            if let Err(why) = knobs.plan.check() {
                return at_line(&bytes, at, &why);
            }
        }
        match knobs.check_regions() {
            Ok(()) => Ok(knobs.begin()),
            Err(refusal) => Err(format!("{}: {}", path.display(), refusal.why)),
        }
    }

    /// The same, with these sizes for all regions, where there are any.
    ///
    /// # Errors
    /// What is out of bounds.
    pub(crate) fn with_options(
        mut self,
        options: &[(&str, Option<u32>)],
        admode: Option<Admode>,
    ) -> Result<Knobs, Refusal> {
        for (name, value) in options.iter().filter_map(|(name, value)| Some((name, u64::from((*value)?)))) {
            self.put(name, value)?;
            self.put(&format!("priv_{name}"), value)?;
        }
        if let Some(admode) = admode {
            self.put("admode", admode as u64)?;
        }
        self.check_regions()?;
        Ok(self.begin())
    }

    /// The threads that switches begin with.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    fn begin(mut self) -> Knobs {
        self.begun = self.set.clone();
        self
    }

    /// Whether something was set since the daemon began, which would be lost with it.
    pub(crate) fn changed(&self) -> bool {
        KNOBS.iter().any(|knob| self.begun.get(knob.name).unwrap_or(&knob.default) != &self.of(knob))
    }

    fn of(&self, knob: &Knob) -> u64 {
        self.set.get(knob.name).copied().unwrap_or(knob.default)
    }

    fn get(&self, name: &str) -> u64 {
        KNOBS.iter().find(|knob| knob.name == name).map_or(0, |knob| self.of(knob))
    }

    fn get_u32(&self, name: &str) -> u32 {
        u32::try_from(self.get(name)).unwrap_or(u32::MAX)
    }

    /// How interfaces are opened.
    pub(crate) fn admode(&self) -> Admode {
        match self.get("admode") {
            0 => Admode::Best,
            1 => Admode::Native,
            _ => Admode::Generic,
        }
    }

    /// Whether whatever programs give back in receive rings of interfaces, which are opened now, goes on to the other side
    /// (NR_FORWARD, NS_FORWARD), though they do not ask for it.
    pub(crate) fn fwd(&self) -> bool {
        self.get("fwd") != 0
    }

    /// Whether receive rings that do not ask for it (NR_TIMESTAMP) get no time.
    pub(crate) fn no_timestamp(&self) -> bool {
        self.get("no_timestamp") != 0
    }

    fn sizes(&self, prefix: &str) -> Sizes {
        let pool =
            |what: &str| (self.get_u32(&format!("{prefix}{what}_num")), self.get_u32(&format!("{prefix}{what}_size")));
        Sizes { ifs: pool("if"), rings: pool("ring"), bufs: pool("buf") }
    }

    /// Of the region that interfaces and their pipes share, the first of which has so many slots. Unless it was set, the
    /// number of buffers is such that three such interfaces have room.
    pub(crate) fn of_interfaces(&self, slots: u32) -> Sizes {
        let sizes = self.sizes("");
        let room = if self.set.contains_key("buf_num") { 0 } else { slots.saturating_mul(3) };
        Sizes { bufs: (sizes.bufs.0.max(room), sizes.bufs.1), ..sizes }
    }

    /// Of other regions, before room is made for what a port needs.
    pub(crate) fn of_others(&self) -> Sizes {
        self.sizes("priv_")
    }

    /// The same, of what the daemon and a program have of an interface that the daemon runs: buffers are an interface's.
    pub(crate) fn of_mediated(&self) -> Sizes {
        let others = self.of_others();
        Sizes { bufs: (others.bufs.0, self.get_u32("buf_size")), ..others }
    }

    /// The same, for memory that a program brings and says nothing more about: unless something was set, as much as the
    /// original gives, for here what is not used takes memory, too.
    pub(crate) fn of_extmem(&self) -> Sizes {
        let set = |name: &'static str, original: u32| match self.set.contains_key(name) {
            true => self.get_u32(name),
            false => original,
        };
        Sizes {
            ifs: (set("priv_if_num", 2), set("priv_if_size", 1024)),
            rings: (set("priv_ring_num", 4), set("priv_ring_size", 5 << 12)),
            bufs: (set("priv_buf_num", 4098), set("priv_buf_size", 2048)),
        }
    }

    /// Sets one, within its bounds.
    fn put(&mut self, name: &str, value: u64) -> Result<(), Refusal> {
        let knob = find(name)?;
        if knob.applies == Applies::ReadOnly {
            return refuse(EPERM, format!("{name} is read-only ({})", knob.about));
        }
        if !knob.range.contains(&value) {
            let (least, most) = (knob.range.start(), knob.range.end());
            return refuse(EINVAL, format!("{name} is {value}, allowed are {least} to {most}"));
        }
        self.set.insert(knob.name, value);
        Ok(())
    }

    /// Whether regions of these sizes can be made.
    fn check_regions(&self) -> Result<(), Refusal> {
        for (what, sizes) in [("interfaces", self.of_interfaces(0)), ("others", self.of_others())] {
            Geometry::new(sizes.ifs, sizes.rings, sizes.bufs)
                .or_else(|why| refuse(EINVAL, format!("no region of {what} could be made: {why}")))?;
        }
        Ok(())
    }

    /// Sets one, if regions can still be made then.
    fn turn(&mut self, name: &str, value: u64) -> Result<(), Refusal> {
        let mut turned = self.clone();
        turned.put(name, value)?;
        turned.check_regions()?;
        *self = turned;
        Ok(())
    }
}

fn find(name: &str) -> Result<&'static Knob, Refusal> {
    match KNOBS.iter().find(|knob| knob.name == name) {
        Some(knob) => Ok(knob),
        None => refuse(ENOENT, "there is no such knob (unetmap get lists them)"),
    }
}

impl Books {
    /// Answers `unetmap get` and `unetmap set`. Only root and the daemon's own user, `owner`, set knobs.
    pub(crate) fn about_knobs(&mut self, payload: &[u8], caller: &Caller, owner: u32) -> Result<String, Refusal> {
        let Some(wish) = Wish::decode(payload) else {
            return refuse(EINVAL, "this is no request about knobs");
        };
        let Peer { uid, pid, .. } = caller.peer;
        let text = match wish {
            Wish::Get(None) => {
                let all: Vec<Told> = KNOBS.iter().map(|knob| self.told(knob, caller)).collect();
                serde_json::to_string(&all)
            }
            Wish::Get(Some(name)) => serde_json::to_string(&self.told(find(&name)?, caller)),
            Wish::Set(..) if uid != 0 && uid != owner => {
                return refuse(EPERM, format!("only root and user {owner}, whose daemon this is, set its knobs"));
            }
            Wish::Set(name, value) => {
                let knob = find(&name)?;
                let before = self.knobs.of(knob);
                self.knobs.turn(&name, value)?;
                tracing::info!(uid, pid, knob = name, before, now = value, "knob set");
                log::set_verbose(self.knobs.get("verbose"));
                serde_json::to_string(&self.told(knob, caller))
            }
        };
        text.or_else(|e| refuse(EIO, format!("the answer cannot be written: {e}")))
    }

    fn told(&self, knob: &Knob, caller: &Caller) -> Told {
        let value = self.current_size(knob.name, caller).unwrap_or_else(|| self.knobs.of(knob));
        let (least, most) = match knob.applies {
            Applies::ReadOnly => (value, value),
            _ => (*knob.range.start(), *knob.range.end()),
        };
        let Knob { name, default, applies, about, .. } = *knob;
        Told { knob: name, value, default, least, most, applies, about }
    }

    /// The knobs `*_curr_*`: of the caller's region of interfaces, if it has one now.
    fn current_size(&self, name: &str, caller: &Caller) -> Option<u64> {
        let (pool, what) = name.split_once("_curr_")?;
        let house = self.numbered(1, caller).ok().and_then(|id| self.houses.get(&id));
        let Some(geometry) = house.map(|house| house.region.geometry()) else { return Some(0) };
        let pool = match pool {
            "if" => geometry.ifs,
            "ring" => geometry.rings,
            _ => geometry.bufs,
        };
        Some(u64::from(if what == "num" { pool.count } else { pool.size }))
    }
}

#[cfg(test)]
impl Knobs {
    /// These sizes for all regions.
    pub(crate) fn of_sizes(sizes: Sizes) -> Knobs {
        let Sizes { ifs, rings, bufs } = sizes;
        let names = ["if_num", "if_size", "ring_num", "ring_size", "buf_num", "buf_size"];
        let values = [ifs.0, ifs.1, rings.0, rings.1, bufs.0, bufs.1].map(Some);
        let options: Vec<_> = names.into_iter().zip(values).collect();
        Knobs::default().with_options(&options, None).unwrap()
    }
}

#[cfg(test)]
mod tests;
