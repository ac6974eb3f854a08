#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
# Copyright (c) 2026, the unetmap authors
"""Writes net/netmap.h, net/netmap_user.h and libnetmap.h from tables of the interface, and from nothing else.

    generate.py STRUCTURES INTERFACE FOLDER

STRUCTURES is the table of structures (offsets, sizes, types) and constants; INTERFACE says what else each header
declares. Programs are compiled with what comes out to show that libunetmap goes by the interface, not by our headers.
"""
import json
import re
import sys
from pathlib import Path


def member(name, kind):
    """A declaration: `char[16]` of `x` is `char x[16]`."""
    base, dims = re.fullmatch(r"(.*?)((?:\[\d*\])*)", kind).groups()
    return f"{base} {name}{dims};"


def structure(name, layout):
    """A structure whose fields stand where the table has them, with what is between them named."""
    lines, at = [f"struct {name} {{"], 0
    fields = sorted(layout["fields"].items(), key=lambda field: field[1]["offset"])
    for field, facts in fields:
        if facts["offset"] > at:
            lines.append(f"\tunsigned char gap_{at}_[{facts['offset'] - at}];")
        lines.append("\t" + member(field, facts["type"]))
        at = facts["offset"] + (facts["size"] or 0)
    if layout["size"] > at:
        lines.append(f"\tunsigned char gap_{at}_[{layout['size'] - at}];")
    lines.append(f"}} __attribute__((__aligned__({layout['align']})));")
    lines.append(f"_Static_assert(sizeof(struct {name}) == {layout['size']}, \"{name}\");")
    for field, facts in fields:
        lines.append(f"_Static_assert(offsetof(struct {name}, {field}) == {facts['offset']}, \"{name}.{field}\");")
    return lines


class Writer:
    def __init__(self, table, interface):
        self.structs, self.constants = table["structs"], table["constants"]
        self.enumerators, self.headers = interface["enumerators"], interface["headers"]

    def is_enumerator(self, name):
        kinds = self.enumerators
        return name.startswith(tuple(kinds["prefixes"])) and name not in kinds["but_macros"]

    def chosen(self, table, wanted):
        """Of a table what is wanted: names, and beginnings that end in `_`."""
        for want in wanted:
            yield from (name for name in table if name == want or want.endswith("_") and name.startswith(want))

    def claimed(self):
        """What headers name themselves; the rest of the table is the first one's."""
        parts = [part for header in self.headers.values() for part in (header, header.get("with", {}))]
        wanted = [want for part in parts for want in part.get("table", [])]
        return set(self.chosen(self.structs, wanted)) | set(self.chosen(self.constants, wanted))

    def constants_of(self, names):
        enumerators = [name for name in names if self.is_enumerator(name)]
        lines = [f"#define {name} {self.constants[name]}" for name in names if not self.is_enumerator(name)]
        if enumerators:
            lines.append("enum { " + ", ".join(f"{name} = {self.constants[name]}" for name in enumerators) + " };")
        return lines

    def part(self, part):
        """What a header declares, or one of its conditional parts."""
        lines = [f"#include <{name}>" for name in part.get("includes", [])]
        lines += [f"struct {name};" for name in part.get("forward", [])]
        constants = list(self.chosen(self.constants, part.get("table", [])))
        structs = list(self.chosen(self.structs, part.get("table", [])))
        if part.get("rest_of_the_table"):
            constants = [name for name in self.constants if name not in self.claimed()]
            structs = [name for name in self.structs if name not in self.claimed()]
        lines += self.constants_of(constants)
        lines += [f"typedef {text};" for text in part.get("typedefs", [])]
        for name in structs:
            lines += structure(name, self.structs[name])
        for name, fields, align in part.get("structs", []):
            aligned = f" __attribute__((__aligned__({align})))" if align else ""
            lines.append(f"struct {name} {{ " + " ".join(f"{field};" for field in fields) + f" }}{aligned};")
        for name, value in part.get("guarded_macros", []):
            lines += [f"#ifndef {name}", f"#define {name} {value}", "#endif"]
        lines += [f"#define {name} {value}" for name, value in part.get("macros", [])]
        lines += [f"static inline {head} {{ {body} }}" for head, body in part.get("inline", [])]
        lines += [f"extern {text};" for text in part.get("functions", []) + part.get("variables", [])]
        return lines

    def header(self, path):
        header = self.headers[path]
        guard = "GENERATED_" + re.sub(r"\W", "_", path).upper()
        lines = [f"#ifndef {guard}", f"#define {guard}", *self.part(header)]
        if "with" in header:
            part = header["with"]
            lines += [f"#ifdef {part['defined']}", f"#define {part['defines']}", *self.part(part), "#endif"]
        return "\n".join([*lines, "#endif", ""])


def main():
    structures, interface, folder = sys.argv[1:]
    writer = Writer(json.loads(Path(structures).read_text()), json.loads(Path(interface).read_text()))
    for path in writer.headers:
        out = Path(folder) / path
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(writer.header(path))


main()
