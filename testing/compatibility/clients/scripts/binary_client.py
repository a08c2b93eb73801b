"""Uses python-binary-memcached's API widely against one server, in the binary protocol, and asserts every result.

Usage: binary_client.py HOST PORT, or binary_client.py SOCKET.
"""

import sys

import bmemcached

SERVER = sys.argv[1] if len(sys.argv) == 2 else f"{sys.argv[1]}:{sys.argv[2]}"
checks = 0


def same(found, due):
    global checks
    checks += 1
    assert found == due, f"found {found!r}, not {due!r}"


c = bmemcached.Client((SERVER,), socket_timeout=20)
same(c.flush_all(), True)
same(c.get("none"), None)
same(c.get("none", default=3), 3)
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
same(c.set("large", "x" * 900_000, compress_level=0), True)
same(c.get("large"), "x" * 900_000)

same(c.add("text", "x"), False)
same(c.add("new", "x"), True)
same(c.replace("new", "y"), True)
same(c.get("new"), "y")
same(c.replace("none", "y"), False)
same(c.delete("new"), True)
same(c.get("new"), None)

value, unique = c.gets("text")
same(value, "täxt ☃")
assert unique
same(c.cas("text", "other", unique), True)
same(c.cas("text", "late", unique), False)
same(c.get("text"), "other")
same(c.get("text", get_cas=True)[0], "other")

same(c.set_multi({f"m{n}": n for n in range(100)}), [])
same(c.get_multi([f"m{n}" for n in range(200)]), {f"m{n}": n for n in range(100)})
same({key: found[0] for key, found in c.get_multi(["m1", "m2", "none"], get_cas=True).items()}, {"m1": 1, "m2": 2})
same(c.delete_multi([f"m{n}" for n in range(100)]), True)
same(c.get_multi([f"m{n}" for n in range(200)]), {})

same(c.incr("count", 5, default=7), 7)
same(c.incr("count", 5), 12)
same(c.decr("count", 2), 10)
same(c.decr("count", 99), 0)

same(c.set("soon", "x", time=1000), True)
same(c.get("soon"), "x")
same(c.set("k" * 250, "x"), True)
same(c.get("k" * 250), "x")

(stats,) = c.stats().values()
number = lambda name: int(stats.get(name, stats.get(name.encode())))
assert number("curr_items") > 0 and number("cmd_get") > 0, stats
same(c.flush_all(), True)
same(c.get("large"), None)
c.disconnect_all()
print(f"OK: {checks} checks")
