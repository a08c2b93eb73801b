"""pylibmc as its own tests use it: every answer is printed, and must be the same with every libmemcached."""

import sys
import threading

import pylibmc
from pylibmc import ClientPool, ThreadMappedPool

host, port = sys.argv[1], sys.argv[2]
server = f"{host}:{port}"


def attempt(what, *arguments, **named):
    try:
        return what(*arguments, **named)
    except pylibmc.Error as error:
        return type(error).__name__
    except (TypeError, ValueError, KeyError) as error:
        return type(error).__name__


def basics(client):
    print("flush", client.flush_all())
    for value in (b"bytes", "text", 5, 5.5, True, None, ["list", 1], {"a": (1, 2)}, b"", "", 2**70, "\u00e4\u20ac"):
        print("set", client.set("k", value), repr(client.get("k")), type(client.get("k")).__name__)
    print("default", client.get("absent"), client.get("absent", "other"))
    print("in", "k" in client, "absent" in client)
    print("add", attempt(client.add, "k", 1), client.add("new", 1))
    print("replace", client.replace("k", 2), attempt(client.replace, "none", 2))
    client.set("text", "middle")
    print("append", client.append("text", " end"), client.prepend("text", "start "), client.get("text"))
    print("append none", attempt(client.append, "none", "x"))
    print("delete", client.delete("k"), attempt(client.delete, "k"))
    client["item"] = "by index"
    print("item", client["item"], attempt(lambda: client["nothing"]))
    del client["item"]
    print("gone", client.get("item"))
    print("touch", client.touch("text", 100), attempt(client.touch, "absent", 100))
    print("time", client.set("short", 1, time=100), client.get("short"))


def numbers(client):
    client.set("n", 10)
    print("incr", client.incr("n"), client.incr("n", 5), client.decr("n", 3), client.decr("n", 100))
    print("incr none", attempt(client.incr, "no-number"))
    client.set("word", "word")
    print("incr word", attempt(client.incr, "word"))
    client.set_multi({"x1": 1, "x2": 2})
    print("incr_multi", client.incr_multi(("x1", "x2"), delta=5), client.get_multi(("x1", "x2")))
    print("incr_multi none", attempt(client.incr_multi, ("x1", "x9")))


def many(client):
    print("set_multi", client.set_multi({"a": 1, "b": "two", "c": [3]}))
    print("get_multi", sorted(client.get_multi(["a", "b", "c", "d"]).items(), key=str))
    print("prefix", client.set_multi({"p": 1}, key_prefix="pre-"), client.get_multi(["p"], key_prefix="pre-"), client.get("pre-p"))
    print("add_multi", attempt(lambda: sorted(client.add_multi({"a": 1, "z": 2}))))
    print("delete_multi", client.delete_multi(["a", "b"]), attempt(client.delete_multi, ["a", "c"]))
    large = {f"key{i}": "v" * i for i in range(500)}
    print("500", client.set_multi(large), client.get_multi(list(large)) == large)
    print("empty", client.get_multi([]), client.set_multi({}))


def comparing(client):
    client.behaviors = {"cas": True}
    client.set("cas", "one")
    value, unique = client.gets("cas")
    print("gets", value, unique is not None)
    print("cas", client.cas("cas", "two", unique), attempt(client.cas, "cas", "three", unique), client.get("cas"))
    print("gets none", client.gets("absent"))


def limits(client):
    print("long key", attempt(client.set, "k" * 251, 1), attempt(client.get, "k" * 251))
    print("empty key", attempt(client.set, "", 1))
    print("large", attempt(client.set, "large", b"x" * (2 << 20)))
    print("compressed", client.set("packed", "y" * 100000, min_compress_len=100), client.get("packed") == "y" * 100000)
    print("no pickle", attempt(client.get, "text"))


def behaviours():
    client = pylibmc.Client([server], binary=False, behaviors={"tcp_nodelay": True, "ketama": True, "no_block": True})
    behaviors = client.behaviors
    print({name: behaviors[name] for name in sorted(behaviors) if not name.startswith("_") and "socket" not in name})
    client.behaviors["receive_timeout"] = 1234
    client.behaviors["hash"] = "crc"
    print(client.behaviors["receive_timeout"], client.behaviors["hash"])
    spaced = pylibmc.Client([server], behaviors={"verify_keys": True})
    print("verify", attempt(spaced.set, "a b", 1))
    named = pylibmc.Client([server], namespace="ns:") if "namespace" in (pylibmc.Client.__init__.__doc__ or "") else None
    print("namespaces", named is None or (named.set("x", 1), named.get("x")))


def pools(client):
    pool = ClientPool(client, 3)
    with pool.reserve() as one, pool.reserve() as two:
        print("pool", one.set("shared", 1), two.get("shared"))
    mapped = ThreadMappedPool(client)
    answers = []

    def work(number):
        for step in range(50):
            with mapped.reserve() as mine:
                mine.set(f"t{number}", step)
                answers.append(mine.get(f"t{number}") == step)
        mapped.relinquish()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("threads", len(answers), all(answers))


for binary in (False, True):
    print("== binary" if binary else "== text")
    client = pylibmc.Client([server], binary=binary)
    print("addresses", len(client.addresses))
    basics(client)
    numbers(client)
    many(client)
    comparing(client)
    limits(client)
    statistics = client.get_stats()
    print("stats", len(statistics), int(statistics[0][1]["pid"]) > 0, statistics[0][1]["threads"])
    print("hash", client.hash("key"))
    copy = client.clone()
    print("clone", copy.set("cloned", 1), client.get("cloned"))
    pools(client)
    print("flush", client.flush_all(), client.get("cloned"))
    client.disconnect_all()
    print("again", client.set("again", 1), client.get("again"))
behaviours()
print("OK")
