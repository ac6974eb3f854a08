// SPDX-License-Identifier: BSD-2-Clause
//! Tables of text.

use std::fmt::Write as _;

/// Formats a table with columns as wide as their widest cell, two spaces apart. The first `left` columns are
/// left-aligned, the others right-aligned.
pub fn align(rows: &[Vec<String>], left: usize) -> String {
    let mut widths = vec![0; rows.iter().map(Vec::len).max().unwrap_or(0)];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            // Writes to a String cannot fail.
            let _ = if i < left { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
