// SPDX-License-Identifier: BSD-2-Clause
use std::os::fd::AsFd;
use std::time::Duration;

use unetmap_mem::{CounterPage, Geometry, MappedRange, RingShape, RingView};
use unetmap_sys::{Mapping, memfd};

use super::*;

/// While the daemon counts buffers, free slots keep theirs; afterwards they are exchanged again.
#[test]
fn a_pause_keeps_the_buffers_of_free_slots() {
    let slots = Slots::new(64).unwrap();
    let geometry = Geometry::new((1, 256), (2, 4096), (100, 2048)).unwrap();
    let (region, _memory) = Region::create("test", geometry).unwrap();
    let view = RingView::new(&region, RingShape { offset: geometry.rings.offset, slots, id: 0, dir: 1 }).unwrap();
    (0..64).for_each(|raw| view.slots().set_buf_idx(slots.pos(raw).unwrap(), BufIdx(2 + raw)));
    let page = memfd::create_sealed("test", 4096).unwrap();
    let page = ChannelPage::new(MappedRange::whole(Arc::new(Mapping::new(page.as_fd(), 4096).unwrap())));
    let config = RingConfig { view: &view, channel: 0, doorbell: Doorbell::new().unwrap(), placeholder: BufIdx(0) };
    let counters = memfd::create_sealed("test", 4096).unwrap();
    let counters = CounterPage::new(MappedRange::whole(Arc::new(Mapping::new(counters.as_fd(), 4096).unwrap())));
    let counters = RxCounters::of(&counters, &mut (0..)).unwrap();
    let ring = PortRx::new(&page, config, 2048, counters).unwrap();
    // Ten large packets were delivered and read.
    let read = slots.pos(10).unwrap();
    ring.lock().prod = read;
    ring.lock().recent.delivered(10, 15_000);
    ring.channel.words().publish(read);
    ring.channel.words().release(read);

    let exchanged = || {
        let before: Vec<_> = (0..64).map(|raw| view.slots().buf_idx(slots.pos(raw).unwrap())).collect();
        let mut next = *ring.lock();
        ring.use_recent_buffers(&mut next, 4);
        let after = (0..64).map(|raw| view.slots().buf_idx(slots.pos(raw).unwrap()));
        after.zip(before).filter(|(after, before)| after != before).count()
    };
    let soon = || Instant::now() + Duration::from_millis(20);
    let pauses = [ring.pause_exchanges(soon()), ring.pause_exchanges(soon())];
    assert!(pauses.iter().all(Option::is_some));
    assert_eq!(exchanged(), 0);
    let [first, second] = pauses;
    drop(first);
    assert_eq!(exchanged(), 0, "another one lasts");
    drop(second);
    {
        // A delivery that waits for memory of a client holds the lock.
        let _delivery = ring.lock();
        assert!(ring.pause_exchanges(soon()).is_none());
    }
    assert_eq!(exchanged(), 2 * 4);
}
