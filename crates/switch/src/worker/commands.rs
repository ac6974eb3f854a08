//! What a thread is told: the order it works by, and who waits until it has taken it.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use unetmap_sys::Doorbell;

use super::View;

/// How long the end of a port may wait for a thread.
const LET_GO_LIMIT: Duration = Duration::from_secs(5);

/// What a thread and those who give it work share.
pub struct Post {
    /// Moves with each order.
    pub(crate) ordered: AtomicU64,
    pub(crate) orders: Mutex<Orders>,
    pub(crate) done: Condvar,
    pub(crate) bell: Doorbell,
    /// What the kernel calls the thread; 0: it did not begin yet.
    pub(crate) tid: AtomicU32,
}

pub(crate) struct Orders {
    pub(crate) views: Arc<Vec<View>>,
    /// The order that the thread works by.
    pub(crate) taken: u64,
    pub(crate) end: bool,
}

impl Post {
    /// For a thread that has nothing to do yet.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Post> {
        Ok(Post {
            ordered: AtomicU64::new(0),
            orders: Mutex::new(Orders { views: Arc::default(), taken: 0, end: false }),
            done: Condvar::new(),
            bell: Doorbell::new()?,
            tid: AtomicU32::new(0),
        })
    }

    /// Tells the thread what to look after from now on, which it does when [`Post::let_go`] says so of the number returned.
    pub fn order(&self, views: Vec<View>) -> u64 {
        self.change(|orders| orders.views = Arc::new(views))
    }

    /// Waits until the thread has taken the order, which was given at `since`, so that it uses nothing any more that is not
    /// in its views; `false` when it did not within seconds.
    pub fn let_go(&self, order: u64, since: Instant) -> bool {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = LET_GO_LIMIT.saturating_sub(since.elapsed());
        let waited = self.done.wait_timeout_while(orders, limit, |orders| orders.taken < order);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Ends the thread, which has let go of everything when it is joined.
    pub fn end(&self) {
        self.change(|orders| {
            orders.views = Arc::default();
            orders.end = true;
        });
    }

    /// What the kernel calls the thread, which has taken an order.
    pub fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    fn change(&self, how: impl FnOnce(&mut Orders)) -> u64 {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        how(&mut orders);
        let order = self.ordered.fetch_add(1, Release) + 1;
        self.bell.notify();
        order
    }
}
