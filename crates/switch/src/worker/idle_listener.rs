//! Who listens for quiet rings while the thread naps.
//!
//! ```text
//!                     while the thread sleeps   while it naps
//! a ring that sends   rings its port's bell     wakes the thread by the ring's word (0.2 us for each that is heard)
//! a quiet ring        rings its port's bell     rings its port's bell: the ear wakes the thread by the ear's word
//! ```
//! The kernel lets a thread wait for words or for descriptors. So the bells of quiet rings wake another thread, the ear, which
//! ends the nap. It hears each bell once, until it is told to listen again: who rings all the time gains nothing.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use unetmap_mem::LineWords;
use unetmap_sys::Doorbell;
use unetmap_sys::event::Epoll;
use unetmap_sys::process;
use unetmap_sys::thread::set_wakeup_preemption;

use super::BLIND_NAP;
use crate::worker::backpressure::Which;

/// The bell that ends it, among the ports'.
const END: u64 = u64::MAX;

/// See the module. Ends when it is dropped.
pub(crate) struct Ear {
    its: Arc<Its>,
    thread: Option<JoinHandle<()>>,
}

struct Its {
    bells: Epoll,
    end: Doorbell,
    /// A line of nobody else's: the thread naps as its consumer.
    line: LineWords,
    /// Whose bells rang, until the thread asks.
    heard: Mutex<Vec<u64>>,
}

impl Ear {
    /// One that listens for nobody.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub(crate) fn new() -> io::Result<Ear> {
        let its = Its { bells: Epoll::new()?, end: Doorbell::new()?, line: LineWords::new(), heard: Mutex::default() };
        its.bells.add(&its.end, END, true, false)?;
        let its = Arc::new(its);
        let its_own = its.clone();
        let thread = std::thread::Builder::new().name("switch's ear".into()).spawn(move || its_own.listen())?;
        Ok(Ear { its, thread: Some(thread) })
    }

    /// Listens for a port's bell, which is silent, until it rings.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn listen(&self, (view, port): Which, bell: &Doorbell) -> io::Result<()> {
        self.its.bells.arm_oneshot(bell, (view as u64) << 8 | u64::from(port))
    }

    /// Listens for this bell no more.
    pub(crate) fn forget(&self, bell: &Doorbell) {
        // It may not have listened for it.
        let _ = self.its.bells.delete(bell);
    }

    /// Whose bells rang since this was asked. After a change of views some may be others' than who rang.
    pub(crate) fn heard(&self) -> Vec<Which> {
        let heard = std::mem::take(&mut *self.its.heard.lock().unwrap_or_else(PoisonError::into_inner));
        heard.into_iter().map(|token| ((token >> 8) as usize, token as u8)).collect()
    }

    /// Whether no bell rang since then.
    pub(crate) fn heard_nothing(&self) -> bool {
        self.its.heard.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The line on which the ear sends when a bell has rung.
    pub(crate) fn line(&self) -> &LineWords {
        &self.its.line
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.its.end.notify();
        // It cannot have panicked.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Its {
    fn listen(&self) {
        // What the switch's thread is to others, and where it is to be, is not for the one that wakes it.
        set_wakeup_preemption(true);
        process::allow_all_cpus();
        let mut events = Vec::new();
        loop {
            match self.bells.wait(&mut events, None) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => std::thread::sleep(BLIND_NAP),
            }
            if events.iter().any(|(token, _)| *token == END) {
                return;
            }
            let rang = events.iter().map(|(token, _)| *token);
            self.heard.lock().unwrap_or_else(PoisonError::into_inner).extend(rang);
            // It naps, or will see before it does that something was heard.
            self.line.consumer_sleeps();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use unetmap_mem::Nap;

    use super::*;

    /// Naps until a bell was heard, or for a second.
    fn heard(ear: &Ear) -> Vec<Which> {
        let start = Instant::now();
        loop {
            let heard = ear.heard();
            if !heard.is_empty() || start.elapsed() > Duration::from_secs(1) {
                return heard;
            }
            let mut nap = Nap::default();
            assert!(nap.as_consumer(ear.line()));
            nap.take(|| true);
        }
    }

    #[test]
    fn a_bell_ends_a_nap() {
        let (ear, bell) = (Ear::new().unwrap(), Doorbell::new().unwrap());
        // A nap may be over before the bell rings, on a machine that has no time.
        let woken = (0..20).any(|_| {
            bell.clear();
            ear.listen((3, 200), &bell).unwrap();
            bell.notify_after(Duration::from_millis(2));
            let mut nap = Nap::default();
            nap.as_consumer(ear.line());
            nap.take(|| true)
        });
        assert!(woken, "naps ended by themselves");
        assert_eq!(heard(&ear).first(), Some(&(3, 200)));
    }

    #[test]
    fn a_bell_is_heard_once() {
        let (ear, [a, b]) = (Ear::new().unwrap(), [0; 2].map(|_| Doorbell::new().unwrap()));
        ear.listen((0, 1), &a).unwrap();
        ear.listen((0, 2), &b).unwrap();
        a.notify();
        assert_eq!(heard(&ear), [(0, 1)]);
        a.notify();
        b.notify();
        assert_eq!(heard(&ear), [(0, 2)]);
        a.clear();
        ear.listen((0, 1), &a).unwrap();
        a.notify();
        assert_eq!(heard(&ear), [(0, 1)]);
        a.clear();
        ear.listen((0, 1), &a).unwrap();
        ear.forget(&a);
        ear.forget(&a);
        a.notify();
        b.clear();
        ear.listen((0, 2), &b).unwrap();
        b.notify();
        assert_eq!(heard(&ear), [(0, 2)]);
    }
}
