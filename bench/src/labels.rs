// SPDX-License-Identifier: BSD-2-Clause
//! Labels of contestants in the results.

/// unetmap itself, the first contestant of each benchmark.
pub(crate) const UNETMAP: &str = "unetmap";
/// pkt-gen, as the peer of a C program that is preloaded or uses the node.
pub(crate) const NATIVE: &str = "native";
/// The C program linked with libunetmap, as the peer of the preloaded one.
pub(crate) const LINKED: &str = "linked";
/// The C program under `unetmap run`, as the peer of the one on the node.
pub(crate) const PRELOAD: &str = "preload";
/// A pipe, as the peer of a switch.
pub(crate) const PIPE: &str = "pipe";
/// A switch without idle ports, as the peer of one that has some.
pub(crate) const NO_IDLE_PORTS: &str = "alone";
/// The C library's own function.
pub(crate) const LIBC: &str = "libc";
