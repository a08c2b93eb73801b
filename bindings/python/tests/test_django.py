"""What keyway_cache.django.KeywayCache does besides what Django's own tests ask of a cache backend (django_own_tests.py runs those).

Guards: P30

Its enemies: an attachment for each thread or request, a pickle or a number that does not come back, a failure that takes a page
down.
"""

import asyncio
import os
import threading
import time

import django
import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

settings.configure(SECRET_KEY="none", SESSION_ENGINE="django.contrib.sessions.backends.cache", INSTALLED_APPS=[])
django.setup()

from django.core.cache import caches
from django.core.cache.backends.base import InvalidCacheKey, memcache_key_warnings
from django.core.signals import request_finished
from django.test import override_settings

import keyway_cache
from keyway_cache.django import KeywayCache
from keyway_cache.serde import PickleSerde

MEGABYTE = 1 << 20


@pytest.fixture
def cache(path):
    yield KeywayCache(path, {"OPTIONS": {"memory": 16 * MEGABYTE}})


class Thing:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name


def test_every_thing_comes_back(cache):
    for thing in [None, True, 0, -5, 2**80, 1.5, "täxt", b"bytes", [1], {"a": (1, {2})}, Thing("own"), "x" * 100_000]:
        cache.set("thing", thing)
        found = cache.get("thing", "default")
        assert found == thing and type(found) is type(thing)


def test_all_methods(cache):
    assert cache.get("none", 5) == 5 and cache.add("a", 1) is True and cache.add("a", 2) is False
    assert cache.get_or_set("a", 9) == 1 and cache.get_or_set("b", lambda: 9) == 9
    assert cache.set_many({"c": 3, "d": [4]}, timeout=100) == [] and cache.get_many(["a", "c", "d", "none"]) == {"a": 1, "c": 3, "d": [4]}
    assert cache.incr("a") == 2 and cache.incr("a", 10) == 12 and cache.decr("a", 2) == 10 and cache.incr("a", -3) == 7
    assert cache.decr("a", 100) == 0, "as with memcached"
    for call in [cache.incr, cache.decr, cache.incr_version, cache.decr_version]:
        with pytest.raises(ValueError, match="not found"):
            call("none")
    with pytest.raises(keyway_cache.MemcacheClientError):
        cache.incr("d")
    assert cache.touch("a", 100) is True and cache.touch("none") is False
    assert cache.has_key("a") and "a" in cache and "none" not in cache
    cache.set("v", "one")
    assert cache.incr_version("v") == 2 and cache.get("v") is None and cache.get("v", version=2) == "one"
    assert cache.decr_version("v", version=2) == 1 and cache.get("v") == "one"
    assert cache.delete("a") is True and cache.delete("a") is False
    cache.delete_many(["b", "c", "none"])
    assert cache.get_many(["b", "c", "d"]) == {"d": [4]}
    cache.set("zero", 1, timeout=0)
    cache.set("past", 1, timeout=-5)
    cache.set("long", 1, timeout=60 * 60 * 24 * 365)
    cache.set("ever", 1, timeout=None)
    cache.touch("d", timeout=0)
    assert cache.get_many(["zero", "past", "long", "ever", "d"]) == {"long": 1, "ever": 1}
    cache.clear()
    assert cache.get_many(["v", "d", "long", "ever"]) == {}


def test_all_methods_that_wait(cache):
    async def work():
        await cache.aset("a", 1)
        assert await cache.aget("a") == 1 and await cache.aadd("a", 2) is False
        assert await cache.aget_or_set("b", lambda: [2]) == [2]
        assert await cache.aset_many({"c": 3}) == [] and await cache.aget_many(["a", "c"]) == {"a": 1, "c": 3}
        assert await cache.aincr("a", 4) == 5 and await cache.adecr("a") == 4
        assert await cache.atouch("a") is True and await cache.ahas_key("a")
        assert await cache.aincr_version("a") == 2 and await cache.adecr_version("a", version=2) == 1
        assert await cache.adelete("a") is True
        await cache.adelete_many(["b", "c"])
        await cache.aset("d", 4)
        await cache.aclear()
        assert await cache.aget_many(["b", "c", "d"]) == {}
        await cache.aclose()

    asyncio.run(work())


def test_keys(path):
    def reversed_key(key, prefix, version):
        return f"{version}.{prefix}.{key[::-1]}"

    own = KeywayCache(path, {"KEY_FUNCTION": reversed_key, "KEY_PREFIX": "p", "VERSION": 3, "OPTIONS": {"memory": 16 * MEGABYTE}})
    own.set("abc", "value")
    assert keyway_cache.Client(path).get("3.p.cba") == b"value"
    plain = KeywayCache(path, {"KEY_PREFIX": "site"})
    plain.set("schlüssel☃", "value")
    assert keyway_cache.Client(path, allow_unicode_keys=True).get("site:1:schlüssel☃") == b"value"
    assert plain.get_many(["schlüssel☃"]) == {"schlüssel☃": "value"}
    for key in ["with space", "k" * 250, "nul\0"]:
        with pytest.raises(InvalidCacheKey):
            plain.set(key, 1)
    # 250 characters, and more bytes than a key has.
    with pytest.raises(keyway_cache.MemcacheIllegalInputError):
        plain.get("☃" * 200)


def refusal(call):
    with pytest.raises((InvalidCacheKey, keyway_cache.MemcacheIllegalInputError)) as refused:
        call()
    return type(refused.value), str(refused.value)


def test_keys_are_refused_with_djangos_words(cache):
    """The extension module checks keys. What it says of them must be what Django says, with every verb and at every place of a key."""
    bad = ["k" * 248, "é" * 248] + [f"{'k' * at}{char}{'é' * 3}{'k' * 9}" for char in "\0\t \x1f\x7f" for at in range(10)]
    for key in bad:
        said = next(memcache_key_warnings(f":1:{key}"))
        for call in [cache.get, cache.touch, cache.delete, cache.incr, lambda key: cache.set(key, 1), lambda key: cache.add(key, 1)]:
            assert refusal(lambda: call(key)) == (InvalidCacheKey, said), repr(key)
        for call in [cache.get_many, cache.delete_many, lambda keys: cache.set_many(dict.fromkeys(keys, 1))]:
            assert refusal(lambda: call(name for name in ["good", key])) == (InvalidCacheKey, said)
    # 250 characters, and more bytes than a key has: Django allows it, the client does not.
    assert refusal(lambda: cache.get_many(["é" * 200])) == refusal(lambda: cache.get("é" * 200)) == refusal(lambda: cache.set("é" * 200, 1))
    for key in ["k" * 247, "é" * 123, "!~\x80\xa0\u2028", "", "\U0001f600" * 61]:
        cache.set(key, key)
        assert cache.get(key) == key and cache.get_many([key, key]) == {key: key}
    with pytest.raises((UnicodeEncodeError, keyway_cache.MemcacheIllegalInputError)):
        cache.get("\ud800")


def test_keys_that_are_no_plain_text(cache):
    class Name(str):
        def __str__(self):
            return "another"

    cache.set("another", 1)
    cache.set(5, 2)
    assert cache.get(Name("name")) == 1 and cache.get(5) == cache.get("5") == 2 and cache.get(b"x", 3) == 3
    assert cache.get_many(["5", Name("name"), 7]) == {"5": 2, "name": 1}
    assert cache.get_many(key for key in [5]) == {5: 2} and cache.get_many([]) == {}


def test_what_makes_or_checks_keys_in_its_own_way_is_asked(path):
    asked = []

    class Checked(KeywayCache):
        def validate_key(self, key):
            asked.append(key)

    class Made(KeywayCache):
        def make_key(self, key, version=None):
            return f"made.{key}"

    options = {"OPTIONS": {"memory": 16 * MEGABYTE}}
    checked, made, plain = Checked(path, options), Made(path, options), KeywayCache(path, options)
    checked.set("a", 1)
    assert checked.get("a") == 1 and checked.get_many(["a"]) == {"a": 1} and asked == [":1:a"] * 3
    made.set("a", 2)
    assert made.get("a") == 2 and made.get_many(["a"]) == {"a": 2} and keyway_cache.Client(path).get("made.a") == b"2"
    plain.key_func = lambda key, prefix, version: f"{prefix}/{version}/{key}"
    plain.set("a", 3)
    assert plain.get("a") == 3 and plain.get_many(["a"]) == {"a": 3} and keyway_cache.Client(path).get("/1/a") == b"3"
    plain.key_prefix, plain.version = "p", 9
    assert plain.get("a") is None and plain.get_many(["a"]) == {}
    prefixed = KeywayCache(path, {"OPTIONS": {"key_prefix": "own."}})
    prefixed.set("a", 4)
    assert prefixed.get("a") == 4 and prefixed.get_many(["a"]) == {"a": 4} and keyway_cache.Client(path).get("own.:1:a") == b"4"


def test_values_come_back_as_the_serde_says(path):
    class Delivery(PickleSerde):
        def deserialize(self, key, value, flags):
            return key, super().deserialize(key, value, flags)

    things = {"text": "täxt", "bytes": b"by\xfftes", "none": b"", "empty": "", "int": -7, "list": [1], "never": NotImplemented}
    cache, told = KeywayCache(path, {"OPTIONS": {"memory": 16 * MEGABYTE}}), KeywayCache(path, {"OPTIONS": {"serde": Delivery()}})
    assert cache.set_many(things) == []
    assert cache.get_many(things) == things and told.get_many(things) == {key: (f":1:{key}", thing) for key, thing in things.items()}
    for key, thing in things.items():
        assert cache.get(key, "default") == thing and type(cache.get(key)) is type(thing) and told.get(key) == (f":1:{key}", thing)
    default = object()
    assert cache.get("absent", default) is default and cache.get("absent", version=2) is None and cache.get("text", version=1) == "täxt"
    client = keyway_cache.Client(path)
    client.set(":1:torn", b"\xff", flags=16)
    client.set(":1:odd", b"compressed elsewhere", flags=8)
    client.set(":1:moved", b"no pickle", flags=1)
    for call in [cache.get, lambda key: cache.get_many([key])]:
        with pytest.raises(UnicodeDecodeError):
            call("torn")
    assert cache.get_many(["odd", "moved"]) == {"odd": b"compressed elsewhere", "moved": None}


def test_what_is_too_large_is_not_stored_and_takes_the_old_one_along(cache):
    cache.set("key", "old")
    cache.set("key", "x" * (2 * MEGABYTE))
    assert cache.get("key") is None
    assert cache.set_many({"small": 1, "large": "x" * (2 * MEGABYTE)}) == ["large"]
    assert cache.get_many(["small", "large"]) == {"small": 1}


def test_no_region_is_no_silent_cache(path):
    absent = KeywayCache(path, {})
    for call in [lambda: absent.get("key"), lambda: absent.set("key", 1), lambda: absent.set_many({"key": 1}), absent.clear]:
        with pytest.raises(keyway_cache.MemcacheRegionError):
            call()
    for location in ["", None, ["one", "two"]]:
        with pytest.raises(ImproperlyConfigured):
            KeywayCache(location, {})


def test_threads_and_requests_share_one_attachment(path):
    configured = {"default": {"BACKEND": "keyway_cache.django.KeywayCache", "LOCATION": path, "OPTIONS": {"memory": 16 * MEGABYTE}}}
    with override_settings(CACHES=configured):
        caches["default"].set("count", 0)
        attached = []

        def work():
            for _ in range(50):
                caches["default"].incr("count")
                request_finished.send(None)
            with open("/proc/self/maps") as maps:
                attached.append(sum(path in line for line in maps))

        threads = [threading.Thread(target=work) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert attached == [1] * 10 and caches["default"].get("count") == 500


def test_sessions(path):
    from django.contrib.sessions.backends.cache import SessionStore

    with override_settings(CACHES={"default": {"BACKEND": "keyway_cache.django.KeywayCache", "LOCATION": path, "OPTIONS": {"memory": 16 * MEGABYTE}}}):
        session = SessionStore()
        session["user"] = {"id": 5, "name": "ü"}
        session.save()
        assert SessionStore(session.session_key)["user"] == {"id": 5, "name": "ü"}
        session.delete()
        assert "user" not in SessionStore(session.session_key)


def test_a_prefork_servers_children(cache):
    cache.set("count", 0)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            for _ in range(100):
                cache.incr("count")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert cache.get("count") == 400


def test_an_address_is_no_location(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for location in ["127.0.0.1:11211", "localhost:11211", ["127.0.0.1:11211"]]:
        with pytest.raises(ImproperlyConfigured, match="backends.memcached"):
            KeywayCache(location, {})
    assert os.listdir() == []


def test_one_caller_of_all_processes_calls_the_default(cache, tmp_path):
    calls, begun, go_on = tmp_path / "calls", tmp_path / "begun", tmp_path / "go-on"

    def default():
        with open(calls, "a") as file:
            file.write("called\n")
        end = time.monotonic() + 60
        while begun.stat().st_size < 4:
            assert time.monotonic() < end
            time.sleep(0.001)
        return {"a": [1]}

    begun.touch()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            with open(begun, "a") as file:
                file.write("x")
            os._exit(0 if cache.get_or_set("key", default, 60) == {"a": [1]} else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert calls.read_text() == "called\n" and cache.get_or_set("key", None) == {"a": [1]}


def test_get_or_set_is_djangos_otherwise(cache):
    assert cache.get_or_set("none", None) is None and cache.get("none", "default") is None
    assert cache.get_or_set("called", lambda: None) is None and cache.get("called", "default") is None
    assert cache.get_or_set("called", lambda: 5) is None, "None is a value"
    for timeout in (0, -1):
        assert cache.get_or_set("gone", lambda: 5, timeout) == 5 and cache.get("gone") is None
    assert cache.get_or_set("v", lambda: 5, version=2) == 5 and cache.get("v") is None and cache.get("v", version=2) == 5
    assert cache.get_or_set("ever", lambda: 5, None) == 5 and cache.get("ever") == 5
    with pytest.raises(InvalidCacheKey):
        cache.get_or_set("white space", lambda: 5)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("failed", lambda: 1 / 0)
    assert cache.get_or_set("failed", lambda: 1) == 1
    assert cache.get_or_set("outer", lambda: cache.get_or_set("outer", lambda: 5) + 1) == 6 and cache.get("outer") == 6
    assert cache.get_or_set("changed", lambda: cache.set("changed", 1) or 2) == 2 and cache.get("changed") == 1
    assert cache.get_or_set("deleted", lambda: cache.delete("deleted") or 2) == 2 and cache.get("deleted") is None


def test_aget_or_set(cache):
    async def uses():
        calls = []

        async def default():
            calls.append(1)
            await asyncio.sleep(0)
            return {"a": 1}

        assert await asyncio.gather(*(cache.aget_or_set("key", default) for _ in range(20))) == [{"a": 1}] * 20
        assert len(calls) == 1 and await cache.aget("key") == {"a": 1}
        assert await cache.aget_or_set("none", None) is None and await cache.aget("none", "default") is None
        assert await cache.aget_or_set("called", lambda: None) is None and await cache.aget_or_set("called", lambda: 5) is None
        assert await cache.aget_or_set("plain", 5) == 5 and await cache.aget_or_set("plain", 6) == 5
        assert await cache.aget_or_set("gone", lambda: 5, 0) == 5 and await cache.aget("gone") is None
        assert await cache.aget_or_set("v", lambda: 5, version=2) == 5 and await cache.aget("v") is None

        async def outer():
            return await cache.aget_or_set("outer", lambda: 5) + 1

        assert await cache.aget_or_set("outer", outer) == 6
        with pytest.raises(InvalidCacheKey):
            await cache.aget_or_set("white space", default)

    asyncio.run(uses())
