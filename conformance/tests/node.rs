//! The node: a `/dev/netmap` for programs that know nothing of us, and that nothing of ours is linked with or loaded into.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::home::{Guard, wait_within};
use conformance::{Home, LIMIT, Node, isolated, until};

/// The node, or the reason why there is none, printed.
fn node(home: &Home) -> Option<Node> {
    Node::mounted(home).inspect_err(|why| eprintln!("skipped: {why}")).ok()
}

/// Compiles a program of `conformance/c` so that it needs nothing when it runs.
fn compile(home: &Home, name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = home.folder().join(name);
    let status = Command::new("cc")
        .args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-static", "-DNODE", "-I"])
        .arg(root.join("../include"))
        .arg("-o")
        .arg(&out)
        .arg(root.join("c").join(name).with_extension("c"))
        .status()
        .expect("a C compiler (apt-get install gcc)");
    assert!(status.success(), "{name}.c does not compile");
    out
}

/// A program that runs.
struct Running {
    what: String,
    child: Guard,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let what = format!("{command:?}");
        Running { what, child: Guard::spawn(command.stdout(Stdio::piped())) }
    }

    /// What it printed; it must end well.
    #[track_caller]
    fn output(mut self) -> String {
        let status = wait_within(&mut self.child.0, LIMIT);
        let mut text = String::new();
        if status.is_some()
            && let Some(mut out) = self.child.0.stdout.take()
        {
            std::io::Read::read_to_string(&mut out, &mut text).expect("text");
        }
        assert!(status.is_some_and(|status| status.success()), "{}: {status:?}: {text}", self.what);
        text
    }
}

fn start(node: &Node, program: &Path, args: &[&str]) -> Running {
    let mut command = node.command(program);
    command.args(args);
    Running::start(command)
}

#[test]
fn a_static_program_sends_to_another() {
    isolated(|home| {
        let Some(node) = node(home) else { return };
        let pipe = compile(home, "pipe");
        let receiver = start(&node, &pipe, &["receive", "c}1", "20000"]);
        let sender = start(&node, &pipe, &["send", "c{1", "20000"]);
        assert_eq!(sender.output(), "20000\n");
        assert_eq!(receiver.output(), "20000\n");
        until("both sessions are over", || home.snapshot().sessions.is_empty());
    });
}
