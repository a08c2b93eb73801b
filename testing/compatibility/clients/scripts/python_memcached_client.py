"""Uses python-memcached's ordinary API widely against one server and asserts every result.

Usage: python_memcached_client.py HOST PORT, or python_memcached_client.py SOCKET.
"""

import sys
import time

import memcache

SERVER = f"unix:{sys.argv[1]}" if len(sys.argv) == 2 else f"{sys.argv[1]}:{sys.argv[2]}"
checks = 0


def same(found, due):
    global checks
    checks += 1
    assert found == due, f"found {found!r}, not {due!r}"


c = memcache.Client([SERVER], cache_cas=True, socket_timeout=20)
assert c.flush_all() is None
same(c.get("none"), None)
same(c.set("text", "täxt ☃"), True)
same(c.get("text"), "täxt ☃")
same(c.set("bytes", bytes(range(256))), True)
same(c.get("bytes"), bytes(range(256)))
same(c.set("int", 42), True)
same(c.get("int"), 42)
same(c.set("thing", {"a": [1, 2, (3, None)]}), True)
same(c.get("thing"), {"a": [1, 2, (3, None)]})
same(c.set("empty", ""), True)
same(c.get("empty"), "")

same(c.add("text", "x"), False)
same(c.add("new", "x"), True)
same(c.replace("new", "y"), True)
same(c.replace("none", "y"), False)
same(c.append("new", "+"), True)
same(c.prepend("new", "-"), True)
same(c.get("new"), "-y+")
same(c.append("none", "+"), False)

same(c.set("n", 10), True)
same(c.incr("n"), 11)
same(c.incr("n", 9), 20)
same(c.decr("n", 5), 15)
same(c.decr("n", 50), 0)
same(c.incr("none"), None)

same(c.touch("n", 100), 1)
same(c.touch("none", 100), 0)
same(c.set("soon", "x", time=1000), True)
same(c.get("soon"), "x")
same(c.set("gone", "x", time=-1), True)
same(c.get("gone"), None)

# a unique that is remembered since gets
same(c.set("u", "1"), True)
same(c.gets("u"), "1")
same(c.cas("u", "2"), True)
other = memcache.Client([SERVER], cache_cas=True, socket_timeout=20)
same(c.gets("u"), "2")
same(other.set("u", "3"), True)
same(c.cas("u", "4"), False)
same(c.get("u"), "3")

pairs = {f"many{n}": n for n in range(500)}
same(c.set_multi(pairs), [])
same(c.get_multi(list(pairs)), pairs)
same(c.get_multi(["many1", "none"]), {"many1": 1})
same(c.set_multi({"a": "1", "b": "2"}, key_prefix="pre:"), [])
same(c.get_multi(["a", "b"], key_prefix="pre:"), {"a": "1", "b": "2"})
same(c.get("pre:a"), "1")
same(c.delete_multi(list(pairs)), 1)
same(c.get_multi(list(pairs)), {})
same(c.set_multi({f"quiet{n}": n for n in range(50)}, noreply=True), [])
same(len(c.get_multi([f"quiet{n}" for n in range(50)])), 50)

same(c.delete("text"), 1)
same(c.delete("text"), 0)
same(c.get("text"), None)

large = "L" * 900_000
same(c.set("large", large), True)
same(c.get("large"), large)
same(c.set("packed", "P" * 500_000, min_compress_len=1000), True)
same(c.get("packed"), "P" * 500_000)
same(c.set("toolarge", "L" * 1_048_577), 0)
try:
    c.get("with space")
    raise AssertionError("a key with a space was taken")
except memcache.Client.MemcachedKeyCharacterError:
    checks += 1
try:
    c.get("k" * 251)
    raise AssertionError("a key of 251 bytes was taken")
except memcache.Client.MemcachedKeyLengthError:
    checks += 1
same(c.set("k" * 250, "x"), True)
same(c.get("k" * 250), "x")

# One key many times, for as long as a server needs to see that it is hot.
for value in ("one", "another"):
    same(c.set("hot", value), True)
    for _ in range(200):
        same(c.get("hot"), value)
        time.sleep(0.001)

[(_, stats)] = c.get_stats()
assert int(stats["curr_items"]) > 0 and int(stats["cmd_get"]) > 0 and stats["version"], stats
[(_, settings)] = c.get_stats("settings")
assert int(settings["maxbytes"]) > 0, settings
assert c.get_slab_stats()
assert c.flush_all() is None
same(c.get("large"), None)
c.disconnect_all()
print(f"OK: {checks} checks")
