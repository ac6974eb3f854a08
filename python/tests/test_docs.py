# SPDX-License-Identifier: BSD-2-Clause
"""The programs of docs/python.md and of the package's README: each runs, and prints what stands below it."""
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 120


def blocks(document):
    """The document's blocks, each with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / document).read_text(), re.M | re.S)


class Documents(unittest.TestCase):
    def test_each_program_prints_what_the_document_says(self):
        programs = 0
        for document in ("docs/python.md", "python/README.md"):
            found = blocks(document)
            for (language, text), (following, expected) in zip(found, [*found[1:], ("", "")]):
                if language != "python":
                    continue
                done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)
                self.assertEqual(done.returncode, 0, text + done.stdout + done.stderr)
                # Scapy says so after it has asked for an address at the machine's own interfaces.
                self.assertNotIn("MAC address", done.stderr, text)
                if following == "text":
                    self.assertEqual(done.stdout, expected, text)
                programs += 1
        self.assertEqual(programs, 6)

    def test_the_examples_that_the_document_names_exist(self):
        commands = [line for language, text in blocks("docs/python.md") if language == "sh" for line in text.splitlines()]
        named = [word for line in commands for word in line.split() if word.startswith("python/")]
        self.assertEqual(len(named), 3)
        for name in named:
            self.assertTrue((ROOT / name).exists(), name)


if __name__ == "__main__":
    unittest.main()
