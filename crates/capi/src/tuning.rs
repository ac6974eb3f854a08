// SPDX-License-Identifier: BSD-2-Clause
//! Constants that were chosen by measurement or judgement, not given by an interface.

use std::time::Duration;

/// Longest wait for a read section, whose thread may have lost its processor: 20 ms. After it the object is reclaimed
/// later. Not measured.
pub(crate) const READER_LIMIT: Duration = Duration::from_millis(20);

/// Time between two tries to start a request while another thread has one in progress: 100 us. Not measured.
pub(crate) const REQUEST_POLL: Duration = Duration::from_micros(100);

/// Bytes that the allocator maps at once for blocks: 256 KiB; a multiple of the page and of the largest block. Not
/// measured.
pub(crate) const CHUNK: usize = 256 << 10;
