// SPDX-License-Identifier: BSD-2-Clause
//! `demo/run`, where a program fails.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use conformance::{isolated, program};

/// Fails if it is to receive.
const PKT_GEN: &str =
    "#!/bin/sh\ncase \"$*\" in *'-f rx'*) echo 'it cannot receive' >&2; exit 1 ;; esac\nexec \"$0.real\" \"$@\"\n";

#[test]
fn a_failed_demo_shows_the_messages_of_the_program_that_failed() {
    isolated(|home| {
        let bin = home.folder().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        for (name, of) in
            [("unetmap", "unetmap"), ("unetmapd", "unetmapd"), ("bridge", "bridge"), ("pkt-gen.real", "pkt-gen")]
        {
            symlink(program(of), bin.join(name)).expect("a link");
        }
        std::fs::write(bin.join("pkt-gen"), PKT_GEN).expect("a file");
        std::fs::set_permissions(bin.join("pkt-gen"), PermissionsExt::from_mode(0o755)).expect("a mode");
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/run");
        let output = Command::new(demo).env("BIN", &bin).output().expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("demo: receiver ended before port demo}2 was open\n"), "{said}");
        assert!(said.contains("\n  receiver: it cannot receive\n") && said.lines().count() < 8, "{said}");
    });
}
