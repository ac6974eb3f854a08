//! `unetmap node`: a `/dev/netmap` for programs that cannot be run with `unetmap run`.

use std::path::{Path, PathBuf};

use serde_json::Value;
use unetmap::node::{USUAL_PATH, Wish, ask};

use crate::ls::cell;

/// What is to be done.
pub(crate) enum Action {
    On(Option<PathBuf>),
    Off(Option<PathBuf>),
    Status,
}

/// Does it, and says how the node then is.
pub(crate) fn run(action: Action, json: bool) -> Result<u8, String> {
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|e| format!("node: the path {}: {e}", path.display()));
    let wish = match action {
        Action::On(path) => Wish::On(absolute(path.as_deref().unwrap_or(Path::new(USUAL_PATH)))?),
        Action::Off(path) => Wish::Off(path.as_deref().map(absolute).transpose()?),
        Action::Status => Wish::Show,
    };
    let answer = ask(&wish).map_err(|e| format!("node: {e}"))?;
    let text = match answer {
        Some(answer) if json => format!("{answer}\n"),
        None if json => "{\"on\":false,\"files\":0,\"ports\":0,\"left\":0}\n".into(),
        Some(answer) => shown(&answer)?,
        None => "off: no daemon is running\n".into(),
    };
    crate::print("node", &text)?;
    match wish {
        Wish::On(path) => seen(&path),
        _ => Ok(0),
    }
}

/// The daemon mounts where it lives, which may be another place than ours.
fn seen(path: &Path) -> Result<u8, String> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(0),
        Err(e) => Err(format!(
            "node: {} is on, but not seen from here: {e} (the daemon is in another mount namespace; start one here, with \
             UNETMAP_SOCKET to name another socket)",
            path.display()
        )),
    }
}

/// The daemon's answer for people.
fn shown(json: &str) -> Result<String, String> {
    let all: Value = serde_json::from_str(json).map_err(|e| {
        format!("node: the daemon's answer makes no sense ({e}); is it another version? --json shows it")
    })?;
    let mut text = match all["on"] == true {
        true => format!(
            "on: {} (mounted at {}); {} open, {} of them with a port\n",
            cell(&all["path"]),
            cell(&all["mount"]),
            cell(&all["files"]),
            cell(&all["ports"])
        ),
        false => "off\n".into(),
    };
    if all["left"] != 0 {
        text += &format!("{} files of an earlier one are still open\n", cell(&all["left"]));
    }
    Ok(text)
}
