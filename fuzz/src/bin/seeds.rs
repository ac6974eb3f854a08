// SPDX-License-Identifier: BSD-2-Clause
//! `seeds FOLDER` writes the first inputs of the targets to FOLDER/TARGET.

use std::fs;
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "corpus".into()));
    for (number, (target, bytes)) in unetmap_fuzz::seeds::all().into_iter().enumerate() {
        fs::create_dir_all(folder.join(target))?;
        fs::write(folder.join(target).join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
