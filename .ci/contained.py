# SPDX-License-Identifier: BSD-2-Clause
"""Which crates the programs contain, by what cargo says of them."""
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def metadata(*manifest):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *manifest]
    host = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    command += ["--filter-platform", re.search(r"^host: (.*)$", host, re.MULTILINE)[1]]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def needs(node):
    """The ids of the packages that a node of the graph contains, without those of its build and its tests."""
    return [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]


def contained(all, names):
    """The packages of this repository that these are made of, and those of others; each in the order of their names."""
    packages = {package["id"]: package for package in all["packages"]}
    nodes = {node["id"]: node for node in all["resolve"]["nodes"]}
    found, left = set(), [id for id, package in packages.items() if package["name"] in names and not package["source"]]
    if len(left) != len(set(names)):
        sys.exit(f"not all of these are packages: {' '.join(names)}")
    while left:
        id = left.pop()
        if id not in found:
            found.add(id)
            left += needs(nodes[id])
    ordered = sorted((packages[id] for id in found), key=lambda p: (p["name"], p["version"]))
    return [p for p in ordered if not p["source"]], [p for p in ordered if p["source"]]
