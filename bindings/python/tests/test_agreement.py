"""One table of calls, through pymemcache to the server and through keyway_cache.Client to its region: every outcome must be the same.

Guards: P30

Its enemy: a method, default, result or exception that a user of pymemcache would not expect. Clients that lie are in the table's
second test, and must be found out.
"""

import os

import pymemcache.client.base
import pymemcache.exceptions
import pymemcache.serde
import pytest

import keyway_cache
import keyway_cache.serde


class Recorder:
    """Calls a client's methods and writes down what came of them."""

    def __init__(self, client):
        self.client = client
        self.outcomes = []

    def __call__(self, method, *args, **kwargs):
        call = f"{len(self.outcomes)}: {method} {str(args[:1])[:60]}"
        try:
            result = getattr(self.client, method)(*args, **kwargs)
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ in EXCEPTIONS]
            self.outcomes.append((call, "raised", kinds or [type(error).__name__]))
            return None
        self.outcomes.append((call, "returned", masked(result)))
        return result


EXCEPTIONS = ("pymemcache.exceptions", "keyway_cache.exceptions")


def masked(result):
    """CAS uniques differ from run to run: what counts is that they are digits."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], bytes) and result[1].isdigit():
        return (type(result[0]).__name__, result[0], "a unique")
    if isinstance(result, dict):
        return {key: masked(value) for key, value in result.items()}
    return (type(result).__name__, result)


def storing(r):
    r("get", "none")
    r("get", "none", 7)
    r("get", "none", default=b"x")
    for noreply in (None, True, False):
        r("set", "a", b"1", noreply=noreply)
        r("get", "a")
        r("set", b"a", "text", 100, noreply)
        r("get", b"a")
        r("add", "a", b"x", noreply=noreply)
        r("add", f"new {noreply}".replace(" ", "-"), b"x", noreply=noreply)
        r("replace", "a", b"y", noreply=noreply)
        r("replace", "absent", b"y", noreply=noreply)
        r("append", "a", b"+", noreply=noreply)
        r("append", "absent", b"+", noreply=noreply)
        r("prepend", "a", b"-", 5, noreply)
        r("prepend", "absent", b"-", noreply=noreply)
        r("get", "a")
        r("delete", "a", noreply=noreply)
        r("delete", "a", noreply)
        r("get", "a")
    for value in (b"", bytes(range(256)) * 4, b"\r\nEND\r\n", 5, -5, 2.5, None, True, ["a"], "täxt"):
        r("set", "value", value, noreply=False)
        r("get", "value")


def many(r):
    pairs = {f"many:{n}": f"value {n}".encode() for n in range(500)}
    r("set_many", pairs)
    r("get_many", pairs)
    r("set_multi", {"x": b"1", b"y": b"2"}, noreply=False)
    r("get_multi", ["x", b"y", "none"])
    r("gets_many", ["x", "none", "many:3"])
    r("get_many", [])
    r("get_many", None)
    r("gets_many", [])
    r("set_many", {})
    r("set_many", {}, noreply=False)
    r("delete_many", [f"many:{n}" for n in range(250)])
    r("delete_multi", ["x", "none"], noreply=False)
    r("delete_many", [])
    r("get_many", list(pairs) + ["x"])
    r("get_many", ["good", "bad key"])
    r("set_many", {"good": b"1", "bad key": b"2"}, noreply=False)
    r("get", "good")
    r("set_many", {"e1": b"1", "e2": b"2"}, expire=-1, noreply=False)
    r("get_many", ["e1", "e2"])


def uniques(r):
    r("gets", "none")
    r("gets", "none", 1, 2)
    r("gets", "none", default=b"d", cas_default=b"c")
    r("set", "u", b"1", noreply=False)
    found = r("gets", "u")
    r("cas", "u", b"2", found[1], noreply=False)
    r("cas", "u", b"3", found[1])
    r("cas", "u", b"3", found[1], noreply=True)
    r("get", "u")
    r("cas", "u", b"4", int(r("gets", "u")[1]))
    r("cas", "u", b"5", r("gets", "u")[1].decode(), 100, False)
    r("cas", "none", b"3", b"1")
    r("cas", "none", b"3", 1, noreply=True)
    for wrong in ("x", b"", -1, 1.5, None, "1 ", 2**64, "é"):
        r("cas", "u", b"6", wrong)
    r("get", "u")


def numbers(r):
    r("set", "n", b"10", noreply=False)
    r("incr", "n", 5)
    r("decr", "n", 20)
    r("incr", "n", 2**64 - 1)
    r("incr", "n", 1)
    r("incr", "n", 7, noreply=True)
    r("get", "n")
    r("decr", "n", 3, True)
    r("get", "n")
    r("incr", "none", 1)
    r("decr", "none", 1)
    r("incr", "none", 1, noreply=True)
    for wrong in (-1, 2**64, 1.5, "1", None):
        r("incr", "n", wrong)
        r("decr", "n", wrong)
    r("set", "word", b"abc", noreply=False)
    r("incr", "word", 1)
    r("incr", "word", 1, noreply=True)
    r("get", "word")


def times(r):
    r("set", "t", b"1", expire=1000, noreply=False)
    r("touch", "t")
    r("touch", "t", 500, noreply=False)
    r("touch", "none", 500, noreply=False)
    r("touch", "none", 500)
    r("touch", "t", -1, noreply=False)
    r("get", "t")
    r("set", "gone", b"1", expire=-1, noreply=False)
    r("get", "gone")
    r("set", "past", b"1", expire=60 * 60 * 24 * 30 + 1, noreply=False)
    r("get", "past")
    r("set", "far", b"1", expire=2**31 - 1, noreply=False)
    r("get", "far")
    for wrong in (1.5, "1", b"1"):
        r("set", "t", b"1", expire=wrong)
        r("touch", "t", wrong)
        r("set_many", {"t": b"1"}, wrong)
        r("flush_all", wrong)


def keys(r):
    r("set", "k" * 250, b"longest", noreply=False)
    r("get", "k" * 250)
    r("get_many", ["k" * 250])
    # Empty keys and those of white space alone are not among them: pymemcache lets them through, and loses its place in the
    # replies.
    wrong = ["k" * 251, "with space", "tab\t", "line\n", "a\rb", "nul\0", " lead", "trail ", "a\x0bb", "a\x0cb", "schlüssel", 5, None, 1.5]
    for key in wrong:
        r("get", key)
        r("gets", key)
        r("get_many", [key])
        r("set", key, b"1")
        r("set_many", {key: b"1"})
        r("cas", key, b"1", 1)
        r("incr", key, 1)
        r("touch", key)
        r("delete", key)
        r("delete_many", [key])
    r("get", "\x7f\x01control")
    r("get", b"schl\xc3\xbcssel")


def flags(r):
    for number in (0, 7, 2**32 - 1, 2**32, -1):
        r("set", "f", b"1", noreply=False, flags=number)
        r("get", "f")
        r("set_many", {"f": b"2"}, flags=number, noreply=False)
        r("set", "f", b"3", noreply=True, flags=number)


def sizes(r):
    for size in (0, 1, 127, 128, 5000, 70_000, 1_000_000):
        r("set", "sized", b"v" * size, noreply=False)
        r("get", "sized")
    r("set", "large", b"L" * 1_048_577, noreply=False)
    r("set", "large", b"small", noreply=False)
    r("set", "large", b"L" * 1_048_577)
    r("get", "large")
    r("set", "large", b"small", noreply=False)
    r("add", "other", b"L" * 1_048_577, noreply=False)
    r("replace", "large", b"L" * 1_048_577, noreply=False)
    r("append", "large", b"L" * 1_048_577, noreply=False)
    r("set", "large", b"L" * 600_000, noreply=False)
    r("append", "large", b"L" * 600_000, noreply=False)
    r("prepend", "large", b"L" * 600_000, noreply=False)
    r("get", "large")
    r("set_many", {"l1": b"1", "l2": b"L" * 1_048_577, "l3": b"3"}, noreply=False)
    # Not l3: a client that gets an error for l2 closes its connection, perhaps before the server reads l3.
    r("get_many", ["l1", "l2"])


def items(r):
    client = r.client
    client["i"] = b"1"
    r("get", "i")
    r("__getitem__", "i")
    r("__delitem__", "i")
    r("__getitem__", "i")


def administration(r):
    r("set", "a", b"1", noreply=False)
    r("flush_all", noreply=False)
    r("get", "a")
    r("set", "a", b"1", noreply=False)
    r("flush_all")
    r("get", "a")
    r("set", "a", b"1", noreply=False)
    r("flush_all", 1000, noreply=False)
    r("get", "a")
    r("cache_memlimit", 64)
    r("cache_memlimit", "much")
    r("close")
    r("get", "a")
    r("disconnect_all")
    r("quit")
    r("get", "a")
    r("flush_all", 0, noreply=False)


def things(r):
    for thing in ["täxt ☃", "", b"bytes", 42, -42, 0, 2**70, 1.5, None, True, {"a": [1, 2.5, None]}, ("tuple", {1, 2}), "z" * 5000]:
        r("set", "thing", thing, noreply=False)
        r("get", "thing")
        r("set_many", {"t1": thing, "t2": [thing]}, noreply=False)
        r("get_many", ["t1", "t2"])
        r("gets", "thing")
    r("set", "n", 10, noreply=False)
    r("incr", "n", 5)
    r("get", "n")
    r("set", "thing", b"no pickle", noreply=False, flags=1)
    r("get", "thing", "default")
    r("get_many", ["thing", "n"])
    r("set", "thing", lambda: None)
    r("get", "thing")


class FailingSerde:
    def serialize(self, key, value):
        if value == b"unwanted":
            raise ZeroDivisionError(key)
        return value, 3

    def deserialize(self, key, value, flags):
        if value == b"poison":
            raise ZeroDivisionError(key)
        return key, value, flags


def serde_failures(r):
    r("set", "s", b"good", noreply=False)
    r("get", "s")
    r("get", b"s")
    r("set", "s", b"unwanted", noreply=False)
    r("set", "s", b"unwanted", noreply=True)
    r("set_many", {"s": b"unwanted"}, noreply=True)
    r("get", "s")
    r("set", "s", b"poison", noreply=False)
    r("get", "s", b"default")
    r("gets", "s", b"default")
    r("get_many", ["s"])
    r("get", "bad key")


TABLE = [storing, many, uniques, numbers, times, keys, flags, sizes, items, administration]
PLAIN = {}
CONFIGURATIONS = {
    "defaults": (PLAIN, PLAIN, TABLE),
    "with replies": ({"default_noreply": False}, {"default_noreply": False}, [storing, many, numbers, times, administration]),
    "a prefix": ({"key_prefix": b"prefix:"}, {"key_prefix": b"prefix:"}, [storing, many, uniques, numbers, keys]),
    "a prefix of text": ({"key_prefix": "p/"}, {"key_prefix": "p/"}, [storing, keys]),
    "unicode keys": ({"allow_unicode_keys": True}, {"allow_unicode_keys": True}, [storing, keys]),
    "UTF-8": ({"encoding": "utf-8"}, {"encoding": "utf-8"}, [storing, flags]),
    "pickles": ({"serde": pymemcache.serde.pickle_serde}, {"serde": keyway_cache.serde.pickle_serde}, [storing, things, numbers]),
    "compressed": ({"serde": pymemcache.serde.compressed_serde}, {"serde": keyway_cache.serde.compressed_serde}, [things]),
    "pymemcache's serde": ({"serde": pymemcache.serde.compressed_serde}, {"serde": pymemcache.serde.compressed_serde}, [things]),
    "a serde that fails": ({"serde": FailingSerde()}, {"serde": FailingSerde()}, [serde_failures]),
    "failures are misses": (
        {"serde": FailingSerde(), "ignore_exc": True},
        {"serde": FailingSerde(), "ignore_exc": True},
        [serde_failures, uniques],
    ),
    "functions": (
        {"serializer": FailingSerde().serialize, "deserializer": FailingSerde().deserialize},
        {"serializer": FailingSerde().serialize, "deserializer": FailingSerde().deserialize},
        [serde_failures],
    ),
}


def outcomes(client, conversation):
    client.flush_all(noreply=False)
    recorder = Recorder(client)
    conversation(recorder)
    return recorder.outcomes


def differences(one, other):
    assert len(one) == len(other)
    return [f"{str(a)[:300]} but {str(b)[:300]}" for a, b in zip(one, other) if a != b]


@pytest.mark.parametrize(
    "name,conversation", [(name, talk) for name, (_, _, talks) in CONFIGURATIONS.items() for talk in talks], ids=lambda it: getattr(it, "__name__", it)
)
def test_outcomes_are_those_of_pymemcache(server, region_socket, name, conversation):
    theirs, ours, _ = CONFIGURATIONS[name]
    through_server = outcomes(pymemcache.client.base.Client(server, **theirs), conversation)
    assert len(through_server) > 3
    through_region = outcomes(keyway_cache.Client(region_socket, **ours), conversation)
    assert not differences(through_server, through_region), "\n".join(differences(through_server, through_region))
    if memcached := os.environ.get("MEMCACHED_SERVER"):
        through_memcached = outcomes(pymemcache.client.base.Client(memcached, **theirs), conversation)
        assert not differences(through_memcached, through_region), "\n".join(differences(through_memcached, through_region))


class AlwaysStores(keyway_cache.Client):
    def add(self, *args, **kwargs):
        return super().add(*args, **kwargs) or True


class CountsWrong(keyway_cache.Client):
    def incr(self, key, value, noreply=False):
        return super().incr(key, value, noreply) or 0


class ForgetsDefault(keyway_cache.Client):
    def get(self, key, default=None):
        return super().get(key)


class TellsOfQuietOnes(keyway_cache.Client):
    def set(self, key, value, expire=0, noreply=None, flags=None):
        return super().set(key, value, expire, False, flags)


class TakesAnyKey(keyway_cache.Client):
    def get(self, key, default=None):
        return super().get(key.replace(" ", "_") if isinstance(key, str) else key, default)


class NumbersUniques(keyway_cache.Client):
    def gets(self, *args, **kwargs):
        value, unique = super().gets(*args, **kwargs)
        return value, unique and int(unique)


@pytest.mark.parametrize(
    "liar,conversation",
    [
        (AlwaysStores, storing),
        (CountsWrong, numbers),
        (ForgetsDefault, storing),
        (TellsOfQuietOnes, sizes),
        (TakesAnyKey, keys),
        (NumbersUniques, uniques),
    ],
)
def test_clients_that_lie_are_found_out(server, region_socket, liar, conversation):
    expected = outcomes(pymemcache.client.base.Client(server, default_noreply=liar is not AlwaysStores), conversation)
    try:
        found = outcomes(liar(region_socket, default_noreply=liar is not AlwaysStores), conversation)
    except Exception:
        return
    assert differences(expected, found) != []


def test_values_go_both_ways(server, region_socket):
    for theirs, ours in [
        (pymemcache.serde.pickle_serde, keyway_cache.serde.pickle_serde),
        (pymemcache.serde.compressed_serde, keyway_cache.serde.compressed_serde),
    ]:
        network = pymemcache.client.base.Client(server, serde=theirs, default_noreply=False)
        library = keyway_cache.Client(region_socket, serde=ours, default_noreply=False)
        for thing in ["täxt", b"bytes", 42, {"a": [None, 2.5]}, "long" * 1000]:
            network.set("from-network", thing)
            assert library.get("from-network") == thing
            library.set("from-library", thing)
            assert network.get("from-library") == thing
        unique = network.gets("from-library")[1]
        assert library.gets("from-library")[1] == unique
        assert library.cas("from-library", b"new", unique) is True
        assert network.cas("from-library", b"newer", unique) is False
