// SPDX-License-Identifier: BSD-2-Clause
//! Waiting: what a request needs of other threads before it can go on. The control thread serves others meanwhile.
//!
//! ```text
//! needs        provided by                                          the request has taken   and goes on
//! Survey       a thread that reads about an interface               nothing                 from its start, with it
//! Interface    its turn there, while no thread has it               nothing                 from its start
//! Memory       a thread that makes it resident                      the memory              from its start, with it
//! Sockets      a thread that opens them for this request            a port                  with the result
//! Returning    serving again what an earlier daemon has left        nothing                 from its start
//! ```
//! A request that waits is a value, `S`: it owns what it has taken, and gives it back if its client leaves.

use std::sync::Arc;

use crate::ports::nic::surveyed::{NicKey, Place, Survey, Wanted};
use crate::refusal::Refusal;
use crate::region::Prepared;

/// A need of a request. The number says how often one that has taken nothing has waited for an interface.
pub(crate) enum Needs<S> {
    Survey(Wanted, u32),
    Interface(Place, u32),
    Sockets(NicKey, S),
    /// `None`: the thread has it.
    Memory(Option<Box<Prepared>>, u32),
    /// A persistent port, by its hidden end; `None`: all that is left.
    Returning(Option<u32>, u32),
}

/// The result with which a request goes on.
#[derive(Default)]
pub(crate) enum Got<S> {
    /// It begins.
    #[default]
    Nothing,
    Survey(Arc<Survey>, u32),
    /// An interface, or a port.
    Interface(u32),
    Sockets(S, Result<(), Refusal>),
    /// `None`: it is touched as the request uses it.
    Memory(Option<Box<Prepared>>, u32),
}

impl<S> Got<S> {
    /// How often the request has waited for an interface.
    pub(crate) fn rounds(&self) -> u32 {
        match self {
            Got::Survey(_, rounds) | Got::Interface(rounds) | Got::Memory(_, rounds) => *rounds,
            Got::Nothing | Got::Sockets(..) => 0,
        }
    }
}

/// How far a request has come.
pub(crate) enum Step<T, S> {
    Done(T),
    Needs(Needs<S>),
}
