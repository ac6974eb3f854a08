// SPDX-License-Identifier: BSD-2-Clause
//! A priority queue of flows, from which any flow can be removed.

/// Not in the heap.
const OUT: u32 = u32::MAX;

/// Flows by a key, the smallest first. Each flow is in it at most once.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowHeap {
    /// A complete binary tree: the parent of entry *i* is entry (*i* - 1) / 2.
    entries: Vec<(u128, u32)>,
    /// Place of each flow in `entries`.
    places: Vec<u32>,
}

impl FlowHeap {
    /// Makes a heap for flows 0 to `flows` - 1.
    pub(crate) fn new(flows: usize) -> FlowHeap {
        FlowHeap { entries: Vec::with_capacity(flows), places: vec![OUT; flows] }
    }

    pub(crate) fn first(&self) -> Option<(u128, u32)> {
        self.entries.first().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn push(&mut self, flow: u32, key: u128) {
        self.entries.push((key, flow));
        self.up(self.entries.len() - 1);
    }

    pub(crate) fn pop(&mut self) -> Option<(u128, u32)> {
        let first = self.first()?;
        self.remove(first.1);
        Some(first)
    }

    /// Removes a flow; returns whether it was in the heap.
    pub(crate) fn remove(&mut self, flow: u32) -> bool {
        let at = self.places[flow as usize];
        if at == OUT {
            return false;
        }
        let at = at as usize;
        self.places[flow as usize] = OUT;
        let Some(last) = self.entries.pop() else { return false };
        if at < self.entries.len() {
            self.entries[at] = last;
            self.places[last.1 as usize] = at as u32;
            self.down(at);
            self.up(self.places[last.1 as usize] as usize);
        }
        true
    }

    fn up(&mut self, mut at: usize) {
        let entry = self.entries[at];
        while at > 0 && entry < self.entries[(at - 1) / 2] {
            let parent = self.entries[(at - 1) / 2];
            self.put(at, parent);
            at = (at - 1) / 2;
        }
        self.put(at, entry);
    }

    fn down(&mut self, mut at: usize) {
        let entry = self.entries[at];
        loop {
            let children = self.entries.iter().enumerate().skip(2 * at + 1).take(2);
            match children.min_by_key(|(_, child)| **child) {
                Some((child, &value)) if value < entry => {
                    self.put(at, value);
                    at = child;
                }
                _ => break,
            }
        }
        self.put(at, entry);
    }

    fn put(&mut self, at: usize, entry: (u128, u32)) {
        self.entries[at] = entry;
        self.places[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn the_smallest_key_is_first_whatever_is_removed() {
        let (mut heap, mut model, mut random) = (FlowHeap::new(50), BTreeSet::new(), Random::new(1));
        let mut keys = [None; 50];
        for _ in 0..20_000 {
            let flow = random.below(50) as u32;
            match keys[flow as usize].take() {
                None => {
                    let key = u128::from(random.below(1000));
                    heap.push(flow, key);
                    model.insert((key, flow));
                    keys[flow as usize] = Some(key);
                }
                Some(key) if random.below(2) == 0 => {
                    assert!(heap.remove(flow) && !heap.remove(flow));
                    model.remove(&(key, flow));
                }
                key => {
                    keys[flow as usize] = key;
                    let first = heap.pop();
                    assert_eq!(first, model.pop_first());
                    first.into_iter().for_each(|(_, flow)| keys[flow as usize] = None);
                }
            }
            assert_eq!((heap.first(), heap.is_empty()), (model.first().copied(), model.is_empty()));
        }
    }
}
