// SPDX-License-Identifier: BSD-2-Clause
//! What the fuzz targets share.

pub mod bytes;
pub mod ebpf;
pub mod seeds;
