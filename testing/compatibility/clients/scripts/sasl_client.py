"""Logs in by SASL with python-binary-memcached, as users with different rights, and asserts every result.

Usage: sasl_client.py HOST PORT, of a server with the users ann (password secret) and, if a third argument is given, reader (the same
password), who may only read.
"""

import sys

import bmemcached
from bmemcached.exceptions import MemcachedException

SERVER = f"{sys.argv[1]}:{sys.argv[2]}"
checks = 0


def same(found, due):
    global checks
    checks += 1
    assert found == due, f"found {found!r}, not {due!r}"


def client(user, password):
    return bmemcached.Client((SERVER,), user, password, socket_timeout=20)


def fails(what):
    try:
        result = what()
    except MemcachedException:
        same(True, True)
    else:
        raise AssertionError(f"{result!r}, and no error")


ann = client("ann", "secret")
same(ann.set("key", "value"), True)
same(ann.get("key"), "value")
same(ann.set_multi({f"m{n}": n for n in range(100)}), [])
same(ann.get_multi([f"m{n}" for n in range(100)]), {f"m{n}": n for n in range(100)})
same(ann.incr("count", 5, default=7), 7)
fails(lambda: client("ann", "wrong").get("key"))
fails(lambda: client("nobody", "secret").get("key"))
stranger = bmemcached.Client((SERVER,), socket_timeout=20)
fails(lambda: stranger.get("key"))
if len(sys.argv) > 3:
    reader = client("reader", "secret")
    same(reader.get("key"), "value")
    fails(lambda: reader.set("key", "other"))
    fails(lambda: reader.delete("key"))
    same(ann.get("key"), "value")
print(f"OK: {checks} checks")
