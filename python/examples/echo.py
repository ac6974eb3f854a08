#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Two tasks of asyncio at the ends of a pipe: one sends frames, the other sends each back; prints how long that took."""
import asyncio
import statistics
import time

import unetmap

COUNT = 1000


async def echo(port: unetmap.Port) -> None:
    async for batch in port:
        await port.asend_batch(batch)


async def main() -> None:
    with unetmap.Port("netmap:echo{1") as near, unetmap.Port("netmap:echo}1") as far:
        task = asyncio.create_task(echo(far))
        times = []
        for number in range(COUNT):
            begin = time.perf_counter()
            await near.asend_batch([number.to_bytes(60, "big")])
            batch = await near.arecv_batch()
            assert int.from_bytes(batch[0], "big") == number
            times.append(time.perf_counter() - begin)
        far.close()
        await task
        print(f"{COUNT} frames came back, half of them within {statistics.median(times) * 1e6:.0f} us")


if __name__ == "__main__":
    asyncio.run(main())
