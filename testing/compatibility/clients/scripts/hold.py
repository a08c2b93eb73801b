"""Uses pymemcache as most programs do: a get, and if it finds nothing, a computation and a set.

Usage: hold.py HOST PORT KEYS TTL_S COMPUTES_MS SECONDS. Prints how often it has computed, how many gets it made, and the 99th percentile of the
time that a get of a key took that is always there, microseconds.
"""

import random
import sys
import time

from pymemcache.client.base import Client

host, port, keys, ttl, computes_ms, seconds = sys.argv[1], *map(int, sys.argv[2:])
client = Client((host, port), connect_timeout=20, timeout=20)
client.set("always", b"there")
computed, gets, times = 0, 0, []
end = time.monotonic() + seconds
while time.monotonic() < end:
    key = f"user:{random.randrange(keys)}"
    gets += 1
    if client.get(key) is None:
        computed += 1
        time.sleep(computes_ms / 1000)
        client.set(key, b"computed", expire=ttl)
    begun = time.perf_counter()
    assert client.get("always") == b"there"
    times.append(time.perf_counter() - begun)
    time.sleep(random.random() / 100)
times.sort()
print(computed, gets, round(times[len(times) * 99 // 100] * 1e6))
