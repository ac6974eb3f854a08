// SPDX-License-Identifier: BSD-2-Clause
//! The manual pages: their examples. That their options are the programs' is tested beside the programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The pages, each with its section EXAMPLES.
fn examples() -> Vec<(String, String)> {
    let pages = fs::read_dir(root().join("man")).expect("a folder").map(|page| page.expect("a page").path());
    let of = |page: PathBuf| {
        let text = fs::read_to_string(&page).expect("text");
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        let (_, section) = text.split_once("\n.SH EXAMPLES\n").unwrap_or_else(|| panic!("{name} has no EXAMPLES"));
        (name, section.split("\n.SH ").next().unwrap_or_default().to_owned())
    };
    pages.map(of).collect()
}

#[test]
fn every_page_has_examples_and_those_in_c_compile() {
    let mut programs = 0;
    for (name, section) in examples() {
        assert!(section.contains(".nf\n"), "{name}: {section}");
        for block in section.split(".nf\n").skip(1).filter(|block| block.contains("#include")) {
            let code = block.split(".fi").next().unwrap_or_default();
            let code = code.replace("\\-", "-").replace("\\e", "\\").replace("\\*(Aq", "'");
            let folder = tempfile::tempdir().expect("a folder");
            let file = folder.path().join("example.c");
            fs::write(&file, &code).expect("a file");
            let mut compiler = Command::new("cc");
            compiler.args(["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only", "-I"]).arg(root().join("include"));
            let output = compiler.arg(&file).output().expect("a C compiler");
            assert!(output.status.success(), "{name}: {}\n{code}", String::from_utf8_lossy(&output.stderr));
            programs += 1;
        }
    }
    assert!(programs >= 2, "{programs}");
}
