"""Keyway: a memcached-compatible cache in shared memory, as function calls.

    from keyway_cache import Client
    client = Client("/dev/shm/keyway.region", memory=64 << 20)
    client.set("greeting", "hello", expire=60)
    client.get("greeting")                      # b"hello"
    client.fetch("row:7", compute, ttl=60)      # one caller of all processes computes what is absent

`Client` has the methods, defaults and exceptions of pymemcache's. The place is the path of a region's file, or of a
server's region socket (`keyway serve --region-socket`). An absent region is made only if `memory` says how large. `keyway_cache.serde` converts values; `keyway_cache.django` is
Django's cache backend.
"""

from keyway_cache._keyway import Client, __version__
from keyway_cache.exceptions import (
    MemcacheClientError,
    MemcacheError,
    MemcacheIllegalInputError,
    MemcacheInFlightError,
    MemcacheLimitError,
    MemcacheRecursionError,
    MemcacheRegionError,
    MemcacheServerError,
    MemcacheUnexpectedCloseError,
    MemcacheUnknownCommandError,
    MemcacheUnknownError,
    MemcacheWaitError,
)
from keyway_cache.fetching import cached
from keyway_cache import serde

__all__ = [
    "Client",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheInFlightError",
    "MemcacheLimitError",
    "MemcacheRecursionError",
    "MemcacheRegionError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "MemcacheWaitError",
    "__version__",
    "cached",
    "serde",
]
