// SPDX-License-Identifier: BSD-2-Clause
//! NUMA nodes of the machine.

use std::path::Path;
use std::{fs, io};

/// Returns the processors of NUMA node `node`, in order.
///
/// # Errors
/// `ENOENT`: the node does not exist, or the kernel has no NUMA. `InvalidData`: the kernel's list is malformed.
pub fn cpus_of_node(node: u32) -> io::Result<Vec<usize>> {
    cpus_of_node_at(Path::new("/sys/devices/system/node"), node)
}

fn cpus_of_node_at(nodes: &Path, node: u32) -> io::Result<Vec<usize>> {
    let list = fs::read_to_string(nodes.join(format!("node{node}/cpulist")))?;
    parse_list(list.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Parses a list such as `0-3,8`, which may be empty.
fn parse_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_nodes_are_read_from_the_topology() {
        let nodes = tempfile::tempdir().unwrap();
        for (node, list) in [(0, "0-3,8-9\n"), (1, "4-7,10\n"), (2, "\n"), (3, "four\n")] {
            let folder = nodes.path().join(format!("node{node}"));
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cpulist"), list).unwrap();
        }
        let cpus = |node| cpus_of_node_at(nodes.path(), node).map_err(|e| e.kind());
        assert_eq!(cpus(0), Ok(vec![0, 1, 2, 3, 8, 9]));
        assert_eq!(cpus(1), Ok(vec![4, 5, 6, 7, 10]));
        assert_eq!(cpus(2), Ok(vec![]), "memory only");
        assert_eq!((cpus(3), cpus(4)), (Err(io::ErrorKind::InvalidData), Err(io::ErrorKind::NotFound)));
    }
}
