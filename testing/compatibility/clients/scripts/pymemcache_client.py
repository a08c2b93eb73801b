"""Uses pymemcache's ordinary API widely against one server and asserts every result.

Usage: pymemcache_client.py HOST PORT [AUTHORITY], with TLS if there is a file with the authority's certificate, or
pymemcache_client.py SOCKET.
"""

import functools
import ssl
import sys
import threading
import time

from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.client.retrying import RetryingClient
from pymemcache.exceptions import MemcacheClientError, MemcacheIllegalInputError, MemcacheServerError
from pymemcache import serde

SERVER = sys.argv[1] if len(sys.argv) == 2 else (sys.argv[1], int(sys.argv[2]))
if len(sys.argv) == 4:
    secure = {"tls_context": ssl.create_default_context(cafile=sys.argv[3])}
    Client, PooledClient, HashClient = (functools.partial(kind, **secure) for kind in (Client, PooledClient, HashClient))
checks = 0


def same(found, due):
    global checks
    checks += 1
    assert found == due, f"found {found!r}, not {due!r}"


def raises(kinds, action):
    global checks
    checks += 1
    try:
        result = action()
    except kinds:
        return
    raise AssertionError(f"returned {result!r} instead of raising {kinds}")


def storage(c):
    same(c.flush_all(noreply=False), True)
    same(c.get("none"), None)
    same(c.get("none", default=7), 7)
    same(c.set("a", b"1", noreply=False), True)
    same(c.get("a"), b"1")
    same(c.set("a", "text", noreply=False), True)
    same(c.get("a"), b"text")
    same(c.add("a", b"x", noreply=False), False)
    same(c.add("b", b"x", noreply=False), True)
    same(c.replace("b", b"y", noreply=False), True)
    same(c.replace("none", b"y", noreply=False), False)
    same(c.append("b", b"+", noreply=False), True)
    same(c.prepend("b", b"-", noreply=False), True)
    same(c.get("b"), b"-y+")
    same(c.append("none", b"+", noreply=False), False)
    same(c.delete("b", noreply=False), True)
    same(c.delete("b", noreply=False), False)
    same(c.set("empty", b"", noreply=False), True)
    same(c.get("empty"), b"")
    binary = bytes(range(256)) * 4
    same(c.set("binary", binary, noreply=False), True)
    same(c.get("binary"), binary)
    same(c.set("line_ends", b"\r\nEND\r\n", noreply=False), True)
    same(c.get("line_ends"), b"\r\nEND\r\n")
    # without replies
    c.set("quiet", b"1", noreply=True)
    same(c.get("quiet"), b"1")
    c.delete("quiet", noreply=True)
    same(c.get("quiet"), None)


def many(c):
    pairs = {f"many:{n}": f"value {n}".encode() for n in range(1000)}
    same(c.set_many(pairs, noreply=False), [])
    same(c.get_many(pairs), pairs)
    same(c.get_many([]), {})
    same(c.get_many(["many:1", "none", "many:2"]), {"many:1": b"value 1", "many:2": b"value 2"})
    same(c.set_many({f"quiet:{n}": b"q" for n in range(300)}, noreply=True), [])
    same(len(c.get_many([f"quiet:{n}" for n in range(300)])), 300)
    same(c.delete_many([f"many:{n}" for n in range(500)], noreply=False), True)
    same(len(c.get_many(pairs)), 500)
    same(len(c.gets_many(["many:700", "many:701"])), 2)


def uniques(c):
    same(c.gets("none"), (None, None))
    same(c.set("u", b"1", noreply=False), True)
    value, unique = c.gets("u")
    same(value, b"1")
    same(c.cas("u", b"2", unique, noreply=False), True)
    same(c.cas("u", b"3", unique, noreply=False), False)
    same(c.cas("none", b"3", unique, noreply=False), None)
    same(c.get("u"), b"2")


def numbers(c):
    same(c.set("n", b"10", noreply=False), True)
    same(c.incr("n", 5), 15)
    same(c.decr("n", 20), 0)
    same(c.incr("n", 2**64 - 1), 2**64 - 1)
    same(c.incr("n", 1), 0)
    same(c.incr("none", 1), None)
    same(c.decr("none", 1), None)
    same(c.set("word", b"abc", noreply=False), True)
    raises(MemcacheClientError, lambda: c.incr("word", 1))
    same(c.get("word"), b"abc")


def times(c):
    same(c.set("t", b"1", expire=1000, noreply=False), True)
    same(c.touch("t", 500, noreply=False), True)
    same(c.touch("none", 500, noreply=False), False)
    same(c.set("gone", b"1", expire=-1, noreply=False), True)
    same(c.get("gone"), None)


def limits(c):
    same(c.set("k" * 250, b"longest key", noreply=False), True)
    same(c.get("k" * 250), b"longest key")
    raises(MemcacheIllegalInputError, lambda: c.get("k" * 251))
    raises(MemcacheIllegalInputError, lambda: c.get("with space"))
    large = b"L" * 1_000_000
    same(c.set("large", large, noreply=False), True)
    same(c.get("large"), large)
    raises(MemcacheServerError, lambda: c.set("toolarge", b"L" * 1_048_577, noreply=False))
    same(c.get("large"), large)


def hot(c):
    """One key many times, for as long as a server needs to see that it is hot."""
    for value in (b"one", b"another"):
        same(c.set("hot", value, noreply=False), True)
        for _ in range(200):
            same(c.get("hot"), value)
            time.sleep(0.001)


def administration(c):
    stats = c.stats()
    assert stats[b"curr_items"] >= 1 and stats[b"threads"] >= 1 and stats[b"version"], stats
    assert c.stats("settings")[b"maxbytes"] > 0
    assert c.stats("items") is not None and c.stats("slabs") is not None
    assert c.version()
    same(c.cache_memlimit(64), True)
    same(c.flush_all(noreply=False), True)
    same(c.get("large"), None)
    same(c.raw_command(b"mn", "\r\n"), b"MN")
    same(c.raw_command(b"gat 300 none", "END\r\n"), b"")
    c.quit()


def serializers():
    c = Client(SERVER, serde=serde.pickle_serde)
    for thing in ["täxt ☃", 42, 2**70, {"a": [1, 2.5, None]}, b"bytes", ("tuple", {1, 2})]:
        same(c.set("thing", thing, noreply=False), True)
        same(c.get("thing"), thing)
    c.set_many({"x": [1], "y": {"z": 2}}, noreply=False)
    same(c.get_many(["x", "y"]), {"x": [1], "y": {"z": 2}})
    u = Client(SERVER, allow_unicode_keys=True)
    same(u.set("schlüssel☃", "wert", noreply=False), True)
    same(u.get("schlüssel☃"), b"wert")
    compressed = Client(SERVER, serde=serde.compressed_serde)
    same(compressed.set("z", "z" * 100_000, noreply=False), True)
    same(compressed.get("z"), "z" * 100_000)
    prefixed = Client(SERVER, key_prefix=b"prefix:")
    same(prefixed.set("p", b"1", noreply=False), True)
    same(prefixed.get_many(["p"]), {"p": b"1"})
    same(Client(SERVER).get("prefix:p"), b"1")


def other_clients():
    pooled = PooledClient(SERVER, max_pool_size=8)
    pooled.set("pool", b"0", noreply=False)
    threads = [threading.Thread(target=lambda: [pooled.incr("pool", 1) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(pooled.get("pool"), b"800")
    hashed = HashClient([SERVER], use_pooling=True)
    same(hashed.set("h", b"1", noreply=False), True)
    same(hashed.set_many({"h1": b"1", "h2": b"2"}, noreply=False), [])
    same(hashed.get_many(["h", "h1", "h2"]), {"h": b"1", "h1": b"1", "h2": b"2"})
    same(hashed.delete("h", noreply=False), True)
    retrying = RetryingClient(Client(SERVER), attempts=2)
    same(retrying.set("r", b"1", noreply=False), True)
    same(retrying.get("r"), b"1")


client = Client(SERVER, connect_timeout=20, timeout=20)
for part in (storage, many, uniques, numbers, times, limits, hot):
    part(client)
serializers()
other_clients()
administration(client)
print(f"OK: {checks} checks")
