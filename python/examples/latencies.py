#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Round trips through a pipe, as a table and a picture: `latencies.py [FILE.svg] [ROUNDS]`.

The cells (`# %%`) can be run one by one in an editor that knows them, or by jupytext in a notebook.
"""
# %% The ends of a pipe, in one thread: a frame goes there and comes back.
import sys
import time
from pathlib import Path

import numpy as np

import unetmap

TARGET = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("latencies.svg")
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000


def round_trips(rounds: int) -> np.ndarray:
    """Times in microseconds."""
    times = np.empty(rounds)
    with unetmap.Port("netmap:latencies{1") as near, unetmap.Port("netmap:latencies}1") as far:
        for i in range(rounds):
            begin = time.perf_counter_ns()
            near.send(i.to_bytes(60, "big"))
            far.send(far.recv(timeout=10))
            assert int.from_bytes(near.recv(timeout=10), "big") == i
            times[i] = time.perf_counter_ns() - begin
    return times / 1000


times = np.sort(round_trips(ROUNDS))

# %% How long most of them took.
SHARES = [0.5, 0.9, 0.99, 0.999]
marks = [(share, float(np.quantile(times, share))) for share in SHARES]
for share, value in marks:
    print(f"{share:>6.1%} within {value:8.1f} us")

# %% A picture: the share of round trips (upwards) that took at most a time (to the right, by its logarithm).
WIDTH, HEIGHT, LEFT, BELOW = 640, 360, 60, 50
low, high = np.log10(times[0]), np.log10(times[-1] * 1.05)


def x(value: float) -> float:
    return LEFT + (WIDTH - LEFT - 20) * (np.log10(value) - low) / (high - low)


def y(share: float) -> float:
    return HEIGHT - BELOW - (HEIGHT - BELOW - 20) * share


# A point for each five thousandth, and the slowest.
shares = np.unique(np.concatenate([np.linspace(0, 0.99, 200), np.linspace(0.99, 1, 200)]))
line = " ".join(f"{x(value):.1f},{y(share):.1f}" for value, share in zip(np.quantile(times, shares), shares))
ticks = [m * 10.0**e for e in range(-1, 8) for m in (1, 2, 5) if times[0] <= m * 10.0**e <= times[-1]]
parts = [f'<polyline points="{line}" fill="none" stroke="#2f6db3" stroke-width="2"/>']
parts += [
    f'<path d="M{x(t):.1f} 20V{y(0):.1f}" stroke="#ccc"/><text x="{x(t):.1f}" y="{HEIGHT - 28}" text-anchor="middle">{t:g}</text>' for t in ticks
]
for s, v in marks:
    # The last ones have no room to their right.
    place = f'x="{x(v) - 7:.1f}" text-anchor="end"' if x(v) > WIDTH - 110 else f'x="{x(v) + 7:.1f}"'
    parts.append(f'<circle cx="{x(v):.1f}" cy="{y(s):.1f}" r="3"/><text {place} y="{y(s) + 14:.1f}">{s:.1%}: {v:.1f}</text>')
parts += [f'<text x="{LEFT - 8}" y="{y(s) + 4:.1f}" text-anchor="end">{s:.0%}</text>' for s in (0, 0.5, 1)]
parts.append(f'<text x="{WIDTH // 2}" y="{HEIGHT - 8}" text-anchor="middle">us, of {ROUNDS} round trips of 60 bytes</text>')
TARGET.write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    f'<title>Round trips through a pipe</title><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
)
print(f"{TARGET}: the picture")
