//! A switch as one thread sees it.

use std::sync::Arc;

use crate::forward::{BATCH, MAX_FRAGS};
use crate::fdb::Table;
use crate::port::{Attached, Outgoing};
use crate::policy::Book;

/// A switch as one thread sees it.
pub struct View {
    pub(crate) table: Arc<Table>,
    pub(crate) members: Vec<Option<Arc<Attached>>>,
    own: Vec<u8>,
    /// The numbers of the only two members, where there are two.
    pub(crate) pair: Option<[u8; 2]>,
    pub(crate) rules: Book,
}

impl View {
    /// The switch with these addresses and, by number, these ports; the thread looks after those whose numbers are `own`.
    pub fn new(table: Arc<Table>, members: Vec<Option<Arc<Attached>>>, own: Vec<u8>) -> View {
        let all: Vec<u8> = members.iter().flatten().map(|port| port.index).collect();
        // A batch must hold a packet that is too long.
        let rules = Book::new(&members, (MAX_FRAGS + 1, BATCH as u32));
        View { table, members, own, pair: all.try_into().ok(), rules }
    }

    pub(crate) fn own(&self) -> impl Iterator<Item = &Arc<Attached>> {
        self.own.iter().filter_map(|index| self.members.get(usize::from(*index))?.as_ref())
    }

    pub(crate) fn own_rings(&self) -> impl Iterator<Item = (&Attached, usize, &Outgoing)> {
        self.own().flat_map(|port| port.tx.iter().enumerate().map(|(i, ring)| (&**port, i, ring)))
    }

    /// The port that a packet of `me` comes to if it goes to all, where that is one.
    #[inline]
    pub(crate) fn only_other(&self, me: u8) -> Option<&Attached> {
        let [a, b] = self.pair?;
        self.member(if a == me { b } else { a })
    }

    pub(crate) fn member(&self, index: u8) -> Option<&Attached> {
        self.members.get(usize::from(index))?.as_deref()
    }
}
