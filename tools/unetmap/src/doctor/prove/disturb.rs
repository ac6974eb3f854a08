// SPDX-License-Identifier: BSD-2-Clause
//! The rounds of a proof: a client each, and what disturbs it.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use unetmap_sys::link::{self, veth};
use unetmap_sys::process;

use super::client::{Plan, Said};
use super::memory::RX;
use super::{Subject, inside};

/// Frames in each direction of a round: each length at least once up to an MTU of 1500.
const FRAMES: u64 = 3000;
/// How often guards are read.
const CHECK: Duration = Duration::from_millis(250);
/// A client that says nothing new for so long hangs: longer than a link takes to come up, and a frame to be late.
const HANGS: Duration = Duration::from_secs(60);
/// How long a link stays down.
const DOWN: Duration = Duration::from_millis(300);

/// The events of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Plain,
    /// The client is killed, at any moment.
    Kill,
    /// Each interface goes down and up.
    Down,
    /// More frames come than there are buffers.
    Flood,
    /// Each link is negotiated again.
    Renegotiate,
    /// Before it, the devices get rings of other sizes.
    Rings,
    /// Before it, the devices get other numbers of queues, and those of before.
    Queues,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] =
        [Kind::Plain, Kind::Kill, Kind::Down, Kind::Flood, Kind::Renegotiate, Kind::Rings, Kind::Queues];

    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Plain => "undisturbed",
            Kind::Kill => "client killed",
            Kind::Down => "down and up",
            Kind::Flood => "flooded",
            Kind::Renegotiate => "link renegotiated",
            Kind::Rings => "ring sizes",
            Kind::Queues => "queue counts",
        }
    }
}

/// A round.
pub(super) struct Round<'a> {
    pub(super) number: u32,
    pub(super) kind: Kind,
    pub(super) zero_copy: bool,
    pub(super) subjects: &'a [Subject; 2],
}

/// Its result.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) difference: Option<String>,
    /// Disturbances that a driver does not support.
    pub(super) unsupported: Vec<String>,
}

/// A running client, and what it says.
struct Client {
    child: Child,
    says: Receiver<Said>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // It has ended, or is to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Client {
    fn start(plan: &Plan) -> io::Result<Client> {
        let plan = serde_json::to_string(plan)?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["doctor", "--prove-client", &plan]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let lines = child.stdout.take().map(BufReader::new);
        let (sender, says) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufReader::lines).map_while(Result::ok) {
                if let Ok(said) = serde_json::from_str(&line)
                    && sender.send(said).is_err()
                {
                    return;
                }
            }
        });
        Ok(Client { child, says })
    }
}

/// Runs a round.
pub(super) fn run(round: &Round<'_>) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let restore = prepare(round, &mut outcome.unsupported)?;
    let done = attend(round, &mut outcome);
    for (subject, restore) in round.subjects.iter().zip(restore) {
        let Some((rx, tx)) = restore else { continue };
        let name = &subject.link.name;
        inside(subject.netns.as_ref(), || link::set_ring_sizes(name, rx, tx))
            .map_err(|e| format!("{name}: its rings cannot get their former sizes: {e}"))?;
    }
    done.map(|()| outcome)
}

/// Changes what is to be changed before the client starts. Returns ring sizes to set afterwards.
fn prepare(round: &Round<'_>, unsupported: &mut Vec<String>) -> Result<[Option<(u32, u32)>; 2], String> {
    let mut restore = [None, None];
    for (subject, restore) in round.subjects.iter().zip(&mut restore) {
        let name = &subject.link.name;
        let here = |work: &(dyn Fn() -> io::Result<bool> + Sync)| {
            inside(subject.netns.as_ref(), work).map_err(|e| format!("{name}: {}: {e}", round.kind.word()))
        };
        let did = match round.kind {
            Kind::Rings => {
                let sizes = inside(subject.netns.as_ref(), || link::ring_sizes(name)).ok().flatten();
                sizes.is_some_and(|sizes| {
                    // The largest, unless that is what they have.
                    let other = |now: u32, max: u32| if now < max { max } else { now.div_ceil(2) };
                    let (rx, tx) = (other(sizes.rx, sizes.max_rx), other(sizes.tx, sizes.max_tx));
                    let set = here(&|| link::set_ring_sizes(name, rx, tx)).unwrap_or(false);
                    *restore = set.then_some((sizes.rx, sizes.tx));
                    set
                })
            }
            Kind::Queues => {
                let now = inside(subject.netns.as_ref(), || link::channel_settings(name)).ok().flatten();
                let combined = now.map_or(0, |now| now.combined);
                let set = |n: u32| here(&|| link::set_combined_channels(name, n));
                combined > 1 && set(1).unwrap_or(false) && set(combined)?
            }
            _ => true,
        };
        if !did {
            unsupported.push(format!("{name}: {}", round.kind.word()));
        }
    }
    Ok(restore)
}

/// Starts a client, disturbs it, listens to it, and looks at the guards, until it ends.
fn attend(round: &Round<'_>, outcome: &mut Outcome) -> Result<(), String> {
    let plan = Plan {
        round: round.number,
        frames: FRAMES,
        undisturbed: !matches!(round.kind, Kind::Kill | Kind::Down | Kind::Renegotiate),
        flood: if round.kind == Kind::Flood { u64::from(3 * RX) } else { 0 },
        ends: round.subjects.each_ref().map(|subject| subject.plan(round.zero_copy)),
    };
    let client = Client::start(&plan).map_err(|e| format!("a client: {e}"))?;
    // Another moment in each round.
    let random = process::random().map_err(|e| e.to_string())?;
    let mut disturb_at = Some(1 + random % (2 * FRAMES - 1)).filter(|_| !plan.undisturbed);
    let (mut checked, mut heard) = (Instant::now(), Instant::now());
    loop {
        let said = client.says.recv_timeout(CHECK.saturating_sub(checked.elapsed()).max(Duration::from_millis(1)));
        let ended = match said {
            Ok(Said::Progress { sent, received } | Said::Done { sent, received }) => {
                if (sent, received) != (outcome.sent, outcome.received) {
                    heard = Instant::now();
                }
                (outcome.sent, outcome.received) = (sent, received);
                matches!(said, Ok(Said::Done { .. }))
            }
            Ok(Said::Difference(what)) => {
                outcome.difference = Some(what);
                true
            }
            Ok(Said::Cannot(why)) => return Err(why),
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return Err("its client ended by itself".into()),
        };
        if disturb_at.is_some_and(|at| outcome.sent >= at || ended) {
            disturb_at = None;
            if round.kind == Kind::Kill {
                drop(client);
                return check_guards(round, outcome);
            }
            disturb(round, &mut outcome.unsupported)?;
        }
        if ended || checked.elapsed() >= CHECK {
            check_guards(round, outcome)?;
            checked = Instant::now();
        }
        if heard.elapsed() > HANGS {
            let (sent, received) = (outcome.sent, outcome.received);
            outcome.difference.get_or_insert(format!(
                "nothing moves any more, for {} s, with {received} frames received of {sent} sent",
                HANGS.as_secs()
            ));
        }
        if ended || outcome.difference.is_some() {
            return Ok(());
        }
    }
}

/// Disturbs both interfaces, one after the other.
fn disturb(round: &Round<'_>, unsupported: &mut Vec<String>) -> Result<(), String> {
    for subject in round.subjects {
        let (name, index, netns) = (&subject.link.name, subject.link.index, subject.netns.as_ref());
        let done = match round.kind {
            Kind::Renegotiate => inside(netns, || link::renegotiate(name)),
            _ => inside(netns, || {
                veth::set_state(index, false)?;
                thread::sleep(DOWN);
                veth::set_state(index, true).map(|()| true)
            }),
        };
        match done {
            Ok(true) => {}
            Err(e) if round.kind != Kind::Renegotiate => return Err(format!("{name}: {}: {e}", round.kind.word())),
            // No negotiation, or none that is on.
            _ => unsupported.push(format!("{name}: {}", round.kind.word())),
        }
    }
    Ok(())
}

fn check_guards(round: &Round<'_>, outcome: &mut Outcome) -> Result<(), String> {
    for subject in round.subjects {
        for (memory, queue) in subject.memory.iter().zip(0..) {
            let found = memory.check_guards().map_err(|e| format!("the guards: {e}"))?;
            if let Some(what) = found {
                outcome.difference.get_or_insert(format!("{}, queue {queue}: {what}", subject.link.name));
            }
        }
    }
    Ok(())
}
