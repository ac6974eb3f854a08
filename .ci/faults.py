# SPDX-License-Identifier: BSD-2-Clause
"""What scripts say when a program that they run, or a file, is missing or fails: one sentence, and no traceback."""
import shlex
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def told(name):
    """Ends the script with exit status 1 and a sentence that begins with its name. The failed program's own error is in
    it if the script read that; otherwise it stands above."""
    try:
        yield
    except subprocess.CalledProcessError as failed:
        command = failed.cmd if isinstance(failed.cmd, str) else shlex.join(map(str, failed.cmd))
        error = failed.stderr.decode(errors="replace") if isinstance(failed.stderr, bytes) else failed.stderr or ""
        sys.exit(f"{name}: `{command}` failed with status {failed.returncode}" + (f": {error.strip()}" if error.strip() else ""))
    except subprocess.TimeoutExpired as slow:
        sys.exit(f"{name}: `{shlex.join(map(str, slow.cmd))}` did not end within {slow.timeout:.0f} s")
    except OSError as missing:
        sys.exit(f"{name}: {missing.filename or 'the system'}: {missing.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)
