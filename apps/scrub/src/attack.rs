// SPDX-License-Identifier: BSD-2-Clause
//! When an attack begins and ends: when more packets are dropped in a second than a threshold, and when fewer were for
//! some time.

use crate::reason::{Reason, Sum, Totals};

/// Sums by reason.
pub(crate) type Sums = [Sum; Reason::ALL.len()];

/// An attack that goes on, or has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attack {
    /// Second in which it began.
    pub(crate) since: u64,
    /// The last second with more drops than the threshold.
    pub(crate) until: u64,
    /// Packets of its worst second.
    pub(crate) peak: u64,
    /// The sums before it.
    before: Sums,
}

/// A change of state.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// An attack begins, of so many packets in its first second.
    Begin(u64),
    /// It has ended, with what was dropped in it.
    End(Box<(Attack, Sums)>),
}

/// Looks at the sums each second.
#[derive(Debug)]
pub(crate) struct Watch {
    threshold: u64,
    /// Seconds with fewer drops after which an attack has ended.
    quiet: u64,
    last: Sums,
    current: Option<Attack>,
    pub(crate) attacks: u64,
}

fn total(sums: &Sums) -> Sum {
    sums.iter().fold(Sum::default(), |mut all, sum| {
        all.add(*sum);
        all
    })
}

fn since(now: &Sums, before: &Sums) -> Sums {
    std::array::from_fn(|i| now[i].since(before[i]))
}

impl Watch {
    pub(crate) fn new(threshold: u64, quiet: u64) -> Watch {
        Watch { threshold, quiet, last: Sums::default(), current: None, attacks: 0 }
    }

    /// Whether an attack goes on.
    pub(crate) fn is_attacked(&self) -> bool {
        self.current.is_some()
    }

    /// Ends a second, of this number.
    pub(crate) fn second(&mut self, number: u64, totals: &Totals) -> Option<Event> {
        let now = totals.dropped();
        let before = std::mem::replace(&mut self.last, now);
        let new = since(&now, &before);
        // A packet that is too big is of no attack.
        let packets = total(&new).packets - new[Reason::TooBig as usize].packets;
        let is_above = packets > self.threshold;
        match &mut self.current {
            None if is_above => {
                self.attacks += 1;
                self.current = Some(Attack { since: number, until: number, peak: packets, before });
                Some(Event::Begin(packets))
            }
            None => None,
            Some(attack) if is_above => {
                (attack.until, attack.peak) = (number, attack.peak.max(packets));
                None
            }
            Some(attack) if number - attack.until < self.quiet => None,
            Some(_) => self.end(),
        }
    }

    /// Ends an attack that goes on, as the program ends.
    pub(crate) fn end(&mut self) -> Option<Event> {
        let attack = self.current.take()?;
        Some(Event::End(Box::new((attack, since(&self.last, &attack.before)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attack_begins_above_the_threshold_and_ends_after_quiet_seconds() {
        let (totals, mut watch) = (Totals::default(), Watch::new(100, 3));
        let mut events = Vec::new();
        for (second, packets) in
            [(1, 5), (2, 100), (3, 500), (4, 900), (5, 0), (6, 200), (7, 1), (8, 1), (9, 1), (10, 0)]
        {
            totals.dropped[Reason::Bogon as usize].add(Sum { packets, bytes: packets * 60 });
            totals.dropped[Reason::TooBig as usize].add(Sum { packets: 200, bytes: 0 });
            match watch.second(second, &totals) {
                Some(Event::Begin(packets)) => events.push((second, packets, 0)),
                Some(Event::End(ended)) => {
                    let (attack, sums) = *ended;
                    assert_eq!((attack.since, attack.until, attack.peak), (3, 6, 900));
                    events.push((second, total(&sums).packets, total(&sums).bytes));
                }
                None => {}
            }
        }
        assert_eq!(events, [(3, 500, 0), (9, 1603 + 7 * 200, 1603 * 60)]);
        assert!(watch.end().is_none() && watch.attacks == 1);
    }
}
