// SPDX-License-Identifier: BSD-2-Clause
//! Functions that the fuzz targets share.

pub mod bytes;
pub mod ebpf;
pub mod seeds;
