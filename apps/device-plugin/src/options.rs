// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Parser;

/// Bytes of the longest path of a UNIX socket (`sun_path`, without the final zero).
const MAX_SOCKET_PATH: usize = 107;
/// Characters of the longest name, and of the longest domain, of a resource.
const MAX_NAME: usize = 63;
const MAX_DOMAIN: usize = 253;

/// Device plugin of Kubernetes: pods get the daemon's socket.
#[derive(Debug, Parser)]
#[command(name = "unetmap-device-plugin", version = unetmap::version(), max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// The daemon's socket. Its folder is what pods get, at the same path
    #[arg(long, value_name = "PATH", env = "UNETMAP_SOCKET", default_value = unetmap::daemon::SYSTEM_SOCKET)]
    socket: PathBuf,

    /// The resource that pods request
    #[arg(long, value_name = "DOMAIN/NAME", default_value = "unetmap.io/port")]
    resource: String,

    /// Number of devices: so many containers of the node can have one at a time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    count: u16,

    /// The folder of the kubelet's socket, where the plugin's own is made
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet/device-plugins")]
    plugins: PathBuf,
}

/// The validated command line.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) socket: PathBuf,
    /// The socket's folder.
    pub(crate) folder: PathBuf,
    pub(crate) resource: String,
    pub(crate) count: u16,
    pub(crate) kubelet: PathBuf,
    /// The plugin's own socket.
    pub(crate) own: PathBuf,
    /// Its name.
    pub(crate) endpoint: String,
}

impl Cli {
    pub(crate) fn check(self) -> Result<Options, String> {
        if !is_resource(&self.resource) {
            return Err(format!(
                "--resource {}: give a domain, a slash and a name, such as unetmap.io/port, of letters, digits, `-`, `.` \
                 and, in the name, `_`",
                self.resource
            ));
        }
        let folder = self.socket.parent().filter(|folder| self.socket.is_absolute() && *folder != Path::new("/"));
        let Some(folder) = folder.map(Path::to_owned) else {
            let text = "give an absolute path in a folder of its own, which is mounted into containers";
            return Err(format!("--socket {}: {text}", self.socket.display()));
        };
        if folder.to_str().is_none() || self.socket.to_str().is_none() {
            return Err(format!("--socket {}: the path is not UTF-8, which the kubelet needs", self.socket.display()));
        }
        let endpoint = format!("{}.sock", self.resource.replace('/', "_"));
        let (kubelet, own) = (self.plugins.join("kubelet.sock"), self.plugins.join(&endpoint));
        for path in [&self.socket, &kubelet, &own] {
            if path.as_os_str().as_bytes().len() > MAX_SOCKET_PATH {
                let path = path.display();
                return Err(format!("{path}: a socket's path has at most {MAX_SOCKET_PATH} bytes"));
            }
        }
        Ok(Options { socket: self.socket, folder, resource: self.resource, count: self.count, kubelet, own, endpoint })
    }
}

/// Whether this is the qualified name of an extended resource, as Kubernetes has them.
fn is_resource(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else { return false };
    let ends = |part: &str| {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        is_end(part.as_bytes().first()) && is_end(part.as_bytes().last())
    };
    let labels = domain
        .split('.')
        .all(|label| ends(label) && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'));
    let named = ends(name) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    labels && named && domain.len() <= MAX_DOMAIN && name.len() <= MAX_NAME
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(args: &str) -> Result<Options, String> {
        let all = ["unetmap-device-plugin", "--socket", "/run/u/s"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check()
    }

    #[test]
    fn options_are_parsed_or_refused() {
        let options = parse("--resource example.org/net_port --plugins /p").unwrap();
        assert_eq!((&*options.endpoint, options.folder), ("example.org_net_port.sock", "/run/u".into()));
        assert_eq!((options.own, options.kubelet), ("/p/example.org_net_port.sock".into(), "/p/kubelet.sock".into()));
        let long = format!("--plugins /{}", "f".repeat(90));
        for (args, part) in [
            ("--count 0", "1..=1000"),
            ("--count 1001", "1..=1000"),
            ("--resource port", "a domain, a slash"),
            ("--resource unetmap.io/", "a domain, a slash"),
            ("--resource /port", "a domain, a slash"),
            ("--resource a/../b", "a domain, a slash"),
            ("--resource a..b/c", "a domain, a slash"),
            ("--resource unetmap.io/-port", "a domain, a slash"),
            ("--resource Unetmap.io/port", "a domain, a slash"),
            ("--socket sock", "an absolute path"),
            ("--socket /sock", "a folder of its own"),
            (&long, "at most 107 bytes"),
            ("more", "unexpected"),
        ] {
            let message = parse(args).unwrap_err();
            assert!(message.contains(part), "{args}: {message}");
        }
    }

    #[test]
    fn every_flag_has_help() {
        tool_common::testing::check_flags(Cli::command());
    }

    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBunetmap\\-device\\-plugin\\fR [\\fIOPTIONS\\fR]\n";

    /// `man/unetmap-device-plugin.8` is generated from the flags above and `man.roff`. After a change of either, run
    /// this test with `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_man_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/unetmap-device-plugin.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}
