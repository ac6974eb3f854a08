// SPDX-License-Identifier: BSD-2-Clause
//! `.ci/test`, which `make test` runs, with a small project in the place of this one.

use std::path::Path;
use std::process::{Command, Output};

/// The project's files. `one` and `other` end when both run; the library has a test that must be alone.
const FILES: [(&str, &str); 5] = [
    (
        "Cargo.toml",
        "[package]\nname = 'sample'\nversion = '0.1.0'\nedition = '2024'\n[lib]\ndoctest = false\n[[test]]\nname = \
         'plain'\nharness = false\n[workspace]\n",
    ),
    (
        "src/lib.rs",
        r#"
        #[test] fn passes() {}
        #[cfg(broken)] #[test] fn fails() { println!("what it printed"); panic!("the reason") }
        #[cfg(test)] mod tests { mod alone {
            #[test] fn is_repeated() {
                assert!(!std::fs::exists("one").unwrap() && !std::fs::exists("other").unwrap(), "others run");
                let file = std::fs::File::options().append(true).open(std::env::var("UNETMAP_TEST_REPEATS").unwrap());
                std::io::Write::write_all(&mut file.unwrap(), b"is_repeated\n").unwrap();
            }
        } }
        "#,
    ),
    ("tests/one.rs", "mod both;\n#[test] fn runs_beside_the_other() { both::meet(\"one\", \"other\") }\n"),
    ("tests/other.rs", "mod both;\n#[test] fn runs_beside_the_other() { both::meet(\"other\", \"one\") }\n"),
    (
        "tests/plain.rs",
        "fn main() { if std::env::args().any(|arg| arg == \"--list\") { return }\n println!(\"a table\"); \
         std::process::exit(if cfg!(broken) { 7 } else { 0 }) }\n",
    ),
];

/// Each makes its file and waits for the other's; each removes the other's at the end.
const BOTH: &str = r#"
pub fn meet(own: &str, other: &str) {
    std::fs::write(own, "").unwrap();
    for _ in 0..3000 {
        if std::fs::exists(other).unwrap() { return std::fs::remove_file(other).unwrap() }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{other} does not run");
}
"#;

fn run(folder: &Path, flags: &str) -> (Output, String) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/test");
    let mut command = Command::new(script);
    command.arg("--offline").current_dir(folder).env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", folder.join("target"));
    let output = command.output().expect("python3 and cargo, which ran this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn programs_run_side_by_side_and_a_failure_of_any_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir_all(folder.path().join("tests/both")).expect("a folder");
    std::fs::create_dir(folder.path().join("src")).expect("a folder");
    let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml");
    std::fs::copy(toolchain, folder.path().join("rust-toolchain.toml")).expect("a file");
    for (name, text) in FILES.into_iter().chain([("tests/both/mod.rs", BOTH)]) {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let (output, text) = run(folder.path(), "");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in:\n{text}"));
    for part in ["sample/sample: test passes ... ok <", "sample/plain", "\na table\n", "\nThe 20 slowest of 5 tests:\n"]
    {
        at(part);
    }
    let alone = at("sample/sample: test tests::alone::is_repeated ... ok");
    assert!(at("sample/one: test runs_beside") < alone && at("sample/other: test runs_beside") < alone, "{text}");
    assert!(text.ends_with("something disturbed them: 1\n       1    is_repeated\n"), "{text}");

    let (output, text) = run(folder.path(), "--cfg=broken");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for part in ["test fails ... FAILED", "what it printed", "the reason", "error: 2 programs failed:\n"] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    let (_, failed) = text.split_once("programs failed:\n").expect("seen above");
    assert!(failed.contains("    `-p sample --lib`\n") && failed.contains("    `-p sample --test plain`\n"), "{text}");

    std::fs::write(folder.path().join("src/lib.rs"), "no Rust").expect("a file");
    let (output, text) = run(folder.path(), "");
    assert_eq!((output.status.code(), text.contains("slowest")), (Some(101), false), "{output:?}");
}
