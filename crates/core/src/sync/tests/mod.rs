// SPDX-License-Identifier: BSD-2-Clause
//! Syncs compared with models that are implemented differently: by walking, and with queues.

mod fast;
mod hostile;
mod model;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use unetmap_mem::Slots;

use super::{ProgramPointers, steps, test_pipe, validate};

/// Returns a configuration with that many cases, the same in each run.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() }
}

/// netmap's rule by walking: from `hwcur` on, `head`, `cur` and `hwtail` follow in this order within one round.
fn valid_by_walking(n: u32, hwcur: u32, hwtail: u32, head: u32, cur: u32) -> bool {
    let mut at = hwcur;
    let (mut seen_head, mut seen_cur) = (false, false);
    for _ in 0..n {
        seen_head |= at == head;
        seen_cur |= seen_head && at == cur;
        if at == hwtail {
            return seen_head && seen_cur;
        }
        at = (at + 1) % n;
    }
    unreachable!("a round passes every slot")
}

fn compare(n: u32, hwcur: u32, hwtail: u32, head: u32, cur: u32) {
    let slots = Slots::new(n).unwrap();
    let pos = |raw| slots.pos(raw).unwrap();
    let validated = validate(slots, pos(hwcur), pos(hwtail), head, cur);
    let expected =
        valid_by_walking(n, hwcur, hwtail, head, cur).then(|| ProgramPointers { head: pos(head), cur: pos(cur) });
    assert_eq!(validated, expected, "n {n}, hwcur {hwcur}, hwtail {hwtail}, head {head}, cur {cur}");
}

#[test]
fn pointers_are_validated_as_by_walking_on_all_small_rings() {
    for n in 2..=7 {
        let values: Vec<u32> = (0..2 * n + 2).chain([1 << 31, u32::MAX - 1, u32::MAX]).collect();
        for (hwcur, hwtail) in (0..n).flat_map(|a| (0..n).map(move |b| (a, b))) {
            for (&head, &cur) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
                compare(n, hwcur, hwtail, head, cur);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn pointers_are_validated_as_by_walking_on_large_rings(
        n in prop_oneof![Just(Slots::MAX), Just(1024), 2..=Slots::MAX],
        hw in any::<(u32, u32)>(), pointers in any::<(u32, u32)>(), wild in any::<bool>(), near in 0u32..4,
    ) {
        let (hwcur, hwtail) = (hw.0 % n, hw.1 % n);
        compare(n, hwcur, hwtail, if wild { pointers.0 } else { pointers.0 % n }, pointers.1 % n);
        // At the boundaries, where mistakes are likely.
        for head in [hwcur, (hwcur + n - 1) % n, hwtail, (hwtail + 1) % n, (hwcur + near) % n] {
            for cur in [head, (head + n - 1) % n, hwtail, (hwtail + 1) % n, hwcur] {
                compare(n, hwcur, hwtail, head, cur);
            }
        }
    }
}
