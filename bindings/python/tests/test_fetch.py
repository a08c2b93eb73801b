"""Fetches: one caller of all threads, tasks and processes computes what is absent.

Guards: P30, P53

Its enemies: a value that is computed twice, one that was read before a delete and is found after it, a caller that waits for the dead or for
itself, an event loop that stands still, an interpreter that does.
"""

import asyncio
import functools
import multiprocessing
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

import keyway_cache
from keyway_cache import cached, tasks
from keyway_cache.serde import compressed_serde, pickle_serde

MEMORY = 16 << 20
HANGS_AFTER_S = 60
# A shell starts a command in the background with this signal ignored (sh(1), asynchronous lists).
signal.signal(signal.SIGINT, signal.default_int_handler)


class Failed(Exception):
    """What a database says."""


def fails():
    raise Failed("no database")


def never():
    raise AssertionError("it is there, or another computes it")


def until(condition):
    end = time.monotonic() + HANGS_AFTER_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def expires(client, key):
    """Until others do not see the value any more."""
    until(lambda: client.get(key) is None)


def in_threads(number, work):
    """Runs `work(number)` in so many threads; their results."""
    results = [None] * number

    def run(index):
        try:
            results[index] = work(index)
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS_AFTER_S)
        assert not thread.is_alive()
    return results


class Holder:
    """A process that computes the value of a key and does not end."""

    PROGRAM = """
import sys, time, keyway_cache
client = keyway_cache.Client(sys.argv[1], memory=16 << 20)
def compute():
    print("computing", flush=True)
    sys.stdin.readline()
    return b"the holder's"
limit = ("", 1) if sys.argv[3:] else None
print(client.fetch(sys.argv[2], compute, limit=limit), flush=True)
"""

    def __init__(self, client, key, *limited):
        command = [sys.executable, "-c", self.PROGRAM, client.server, key, *limited]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        assert self.process.stdout.readline() == b"computing\n"
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def finish(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


def test_one_of_many_threads_computes(client):
    computed, all_wait = [], threading.Event()

    def compute():
        computed.append(threading.get_ident())
        all_wait.wait(HANGS_AFTER_S)
        return b"value"

    def work(number):
        if number == 7:
            # The interpreter is not held up by those that wait.
            until(lambda: computed)
            client.set("other", b"1")
            all_wait.set()
        return client.fetch("key", compute, ttl=60, wait=HANGS_AFTER_S)

    assert in_threads(8, work) == [b"value"] * 8
    assert len(computed) == 1 and client.get("key") == b"value"
    assert client.fetch("key", never) == b"value"
    assert client.fetch(b"key", never, early=0, wait=1.5, limit=("k", 3)) == b"value"


def test_a_fetch_counts_as_one_get(client):
    before = client.stats()
    client.fetch("key", lambda: b"value")
    client.fetch("key", never)
    after = client.stats()
    assert [after[name] - before[name] for name in (b"get_hits", b"get_misses")] == [1, 1]


def child_fetches(path, number, started, pids):
    client = keyway_cache.Client(path)

    def compute():
        with open(pids, "a") as file:
            file.write(f"{os.getpid()}\n")
        until(lambda: int(client.get("started")) == number)
        return b"value"

    client.incr("started", 1)
    assert client.fetch("key", compute, ttl=60, wait=HANGS_AFTER_S) == b"value"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_of_many_processes_computes(client, method, tmp_path):
    client.set("started", b"0")
    pids = tmp_path / "pids"
    context = multiprocessing.get_context(method)
    children = [context.Process(target=child_fetches, args=(client.server, 4, None, pids)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(HANGS_AFTER_S)
        assert child.exitcode == 0
    assert len(pids.read_text().split()) == 1


def test_the_dead_are_succeeded(client):
    with Holder(client, "key") as holder:
        computed = []

        def compute():
            computed.append(1)
            return b"value"

        def work(number):
            if number == 3:
                holder.kill()
            return client.fetch("key", compute, wait=HANGS_AFTER_S, compute_after_wait=False)

        assert in_threads(4, work) == [b"value"] * 4 and len(computed) == 1
    with Holder(client, "other") as holder:
        holder.kill()
        assert client.fetch("other", lambda: b"value", wait=0, compute_after_wait=False) == b"value", "without any wait"


def test_waits_that_are_over(client):
    with Holder(client, "key") as holder:
        with pytest.raises(keyway_cache.MemcacheInFlightError, match="wait=0.05 s: wait longer, or compute_after_wait"):
            client.fetch("key", never, wait=0.05, compute_after_wait=False)
        with pytest.raises(TimeoutError):
            client.fetch("key", never, wait=0, compute_after_wait=False)
        with pytest.raises(Failed):
            client.fetch("key", fails, wait=0.01)
        assert client.fetch("key", lambda: b"impatient", wait=0.05) == b"impatient"
        assert client.get("key") == b"impatient"
        holder.finish()
        assert holder.process.stdout.readline() == b"b\"the holder's\"\n"
        assert client.get("key") == b"impatient", "what comes later is not stored"


def test_who_fails_after_a_wait_does_not_end_the_others_computation(client):
    with Holder(client, "key") as holder:
        with pytest.raises(Failed):
            client.fetch("key", fails, wait=0)
        holder.finish()
        holder.process.stdout.readline()
        assert client.get("key") == b"the holder's"


def test_an_exception_is_its_callers_and_another_computes(client):
    begun, goes_on = threading.Event(), threading.Event()

    def first():
        begun.set()
        goes_on.wait(HANGS_AFTER_S)
        raise Failed("no database")

    def work(number):
        if number == 0:
            return client.fetch("key", first)
        begun.wait(HANGS_AFTER_S)
        threading.Timer(0.02, goes_on.set).start()
        return client.fetch("key", lambda: b"value", wait=HANGS_AFTER_S)

    failed, value = in_threads(2, work)
    assert isinstance(failed, Failed) and value == b"value"
    with pytest.raises(KeyboardInterrupt):
        client.fetch("interrupted", functools.partial(signal.raise_signal, signal.SIGINT))
    assert client.fetch("interrupted", lambda: b"value", wait=0, compute_after_wait=False) == b"value"


def test_a_wait_ends_for_a_signal(client):
    with Holder(client, "key"):
        def interrupt():
            time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            threading.Thread(target=interrupt).start()
            client.fetch("key", never, wait=HANGS_AFTER_S, compute_after_wait=False)


@pytest.mark.parametrize("change, left", [("delete", None), ("set", b"set"), ("flush_all", None)])
def test_what_was_read_before_a_change_is_not_stored(client, change, left):
    def compute():
        {"delete": lambda: client.delete("key"), "set": lambda: client.set("key", b"set"), "flush_all": client.flush_all}[change]()
        return b"read before"

    assert client.fetch("key", compute) == b"read before"
    assert client.get("key") == left


def test_nothing_is_remembered(client):
    computed = []
    for _ in range(3):
        assert client.fetch("key", lambda: computed.append(1), negative_ttl=60) is None
    assert len(computed) == 1 and client.get("key", "default") == "default"
    client.delete("key")
    assert client.fetch("key", lambda: b"there", negative_ttl=60) == b"there"
    for _ in range(2):
        assert client.fetch("other", lambda: computed.append(1)) is None
    assert len(computed) == 3


def test_stale_values(client, caplog):
    kept = {"ttl": 1, "stale_while_revalidate": 60, "stale_if_error": 60}
    assert client.fetch("key", lambda: b"old", **kept) == b"old"
    expires(client, "key")
    assert client.fetch("key", fails, **kept) == b"old"
    assert "'key'" in caplog.text and "no database" in caplog.text
    with pytest.raises(Failed):
        client.fetch("key", fails, ttl=1)
    with pytest.raises(SystemExit):
        client.fetch("key", sys.exit, **kept)

    def compute():
        # Another caller gets the old value meanwhile.
        assert in_threads(1, lambda _: client.fetch("key", never, **kept)) == [b"old"]
        return b"new"

    assert client.fetch("key", compute, **{**kept, "ttl": 60}) == b"new"
    assert client.fetch("key", never) == b"new"


def test_an_early_refresh(client):
    slow = lambda: time.sleep(0.01) or b"old"
    assert client.fetch("key", slow, ttl=1000, early=1e12) == b"old"
    assert client.fetch("key", lambda: b"new", ttl=1000, early=1e12) == b"new", "it is due at once"
    assert client.fetch("key", never) == b"new"


def test_a_limit(client):
    with Holder(client, "one", "limited") as holder:
        with pytest.raises(keyway_cache.MemcacheLimitError, match="raise the limit"):
            client.fetch("two", never, wait=0.05, limit=("", 1))
        assert client.fetch("two", lambda: b"other", wait=0, limit=("o", 1)) == b"other"
        holder.kill()
        assert client.fetch("three", lambda: b"value", wait=HANGS_AFTER_S, limit=("", 1)) == b"value"
    now, most = [], []

    def compute():
        now.append(1)
        most.append(len(now))
        time.sleep(0.002)
        now.pop()
        return b"value"

    assert in_threads(8, lambda number: client.fetch(f"row:{number}", compute, wait=HANGS_AFTER_S, limit=("row:", 3))) == [b"value"] * 8
    assert 1 <= max(most) <= 3


def test_a_fetch_within_its_own_computation(client):
    with pytest.raises(keyway_cache.MemcacheRecursionError, match="wait for itself"):
        client.fetch("key", lambda: client.fetch("key", never))
    assert client.fetch("key", lambda: client.fetch("inner", lambda: b"inner") + b" and outer") == b"inner and outer"


def test_a_fork_within_a_computation_leaves_it_to_the_parent(client):
    def compute():
        child = os.fork()
        if child:
            assert os.waitpid(child, 0) == (child, 7 << 8)
            assert client.get("key") is None
            return b"the parent's"
        return b"the child's"

    value = client.fetch("key", compute)
    if value == b"the child's":
        os._exit(7)
    assert value == client.get("key") == b"the parent's"


def test_values_come_as_others_get_them(path):
    for serde, value, same in [(pickle_serde, {"a": [1]}, True), (compressed_serde, "x" * 1000, False), (None, 5, False), (None, "text", False)]:
        client = keyway_cache.Client(path, memory=MEMORY, serde=serde)
        client.delete("key")
        first = client.fetch("key", lambda: value)
        assert first == client.fetch("key", never) == client.get("key") and type(first) is type(client.get("key"))
        assert (first is value) is same
    client = keyway_cache.Client(path, serde=pickle_serde)
    with pytest.raises(TypeError, match="pickle"):
        client.fetch("unpicklable", lambda: threading.Lock())
    assert client.fetch("unpicklable", lambda: 1, wait=0, compute_after_wait=False) == 1
    assert client.fetch("large", lambda: b"v" * (2 << 20)) == b"v" * (2 << 20), "too large to be stored"
    assert client.get("large") is None


def test_large_values(path):
    client = keyway_cache.Client(path, memory=64 << 20, item_size_max=16 << 20)
    value = os.urandom(6 << 20)
    assert client.fetch("key", lambda: value) == client.get("key") == value


def test_no_region(path, tmp_path):
    absent = str(tmp_path / "absent")
    with pytest.raises(keyway_cache.MemcacheRegionError):
        keyway_cache.Client(absent).fetch("key", never)
    forgiving = keyway_cache.Client(absent, ignore_exc=True)
    assert forgiving.fetch("key", lambda: b"computed") == b"computed"
    assert forgiving.fetch_many(["a", "b"], lambda keys: {"a": b"1"}) == {"a": b"1"}
    with pytest.raises(Failed):
        forgiving.fetch("key", fails)


def test_arguments(client):
    for wrong in [{"ttl": "1"}, {"ttl": 1.5}, {"negative_ttl": -1}, {"early": "x"}, {"early": -1}, {"wait": -1}, {"wait": "x"},
                  {"limit": 5}, {"limit": ("a", 0)}, {"limit": ("a", 64)}, {"limit": ("a",)}, {"limit": (5, 5)}, {"stale_if_error": "1"}]:
        for call in [lambda: client.fetch("key", never, **wrong), lambda: client.fetch_many(["key"], never, **wrong), lambda: client.fetch_async("key", never, **wrong)]:
            with pytest.raises(keyway_cache.MemcacheIllegalInputError, match=next(iter(wrong))):
                call()
    for call in (client.fetch, client.fetch_many, client.fetch_async):
        with pytest.raises(TypeError, match="unexpected keyword argument 'expire'"):
            call("key", never, expire=1)
    with pytest.raises(keyway_cache.MemcacheIllegalInputError):
        client.fetch("white space", never)
    assert client.fetch("key", lambda: b"value", wait=float("inf"), ttl=None, limit=None) == b"value"
    with pytest.raises(TypeError):
        client.fetch("other", 5)
    assert client.fetch("other", lambda: b"value", wait=0, compute_after_wait=False) == b"value"


def test_many_keys(client):
    client.set("there", b"1")
    asked = []

    def compute(missing):
        asked.append(missing)
        return {key: key.encode() for key in missing if key != "none"}

    keys = ["there", "a", "none", "b", "a"]
    for _ in range(2):
        assert client.fetch_many(keys, compute, negative_ttl=60) == {"there": b"1", "a": b"a", "b": b"b"}
    assert asked == [["a", "none", "b"]]
    assert client.fetch_many([], never) == client.fetch_many(None, never) == {}
    with pytest.raises(Failed):
        client.fetch_many(["c", "d"], lambda _: fails())
    with pytest.raises(AttributeError):
        client.fetch_many(["c", "d"], lambda _: 5)
    assert client.fetch_many(["c", "d"], compute, wait=0, compute_after_wait=False) == {"c": b"c", "d": b"d"}
    kept = {"ttl": 1, "stale_if_error": 60}
    client.fetch_many(["e", "f"], compute, **kept)
    expires(client, "f")
    assert client.fetch_many(["e", "f"], lambda _: fails(), **kept) == {"e": b"e", "f": b"f"}


def test_many_keys_of_several_callers(client):
    keys = [f"key:{number}" for number in range(40)]
    computed, at_once = [], threading.Barrier(4)

    def work(number):
        at_once.wait()
        turned = keys[number * 10 :] + keys[: number * 10]
        return client.fetch_many(turned, lambda missing: [computed.extend(missing), time.sleep(0.02)] and {key: key.encode() for key in missing}, wait=HANGS_AFTER_S)

    assert in_threads(4, work) == [{key: key.encode() for key in keys}] * 4
    assert sorted(computed) == sorted(keys)
    with Holder(client, "held") as holder:
        asked = []

        def compute(missing):
            asked.append(missing)
            holder.kill()
            return {key: b"mine" for key in missing}

        assert client.fetch_many(["held", "free"], compute, wait=HANGS_AFTER_S) == {"held": b"mine", "free": b"mine"}
        assert asked == [["free"], ["held"]]


def test_the_decorator(client):
    calls = []

    @cached(client, key="user:{number}:{kind}", ttl=60)
    def user(number, kind="plain"):
        """A user."""
        calls.append((number, kind))
        return b"%d" % number

    assert [user(1), user(number=1), user(1, "plain"), user(2)] == [b"1", b"1", b"1", b"2"]
    assert calls == [(1, "plain"), (2, "plain")] and user.__doc__ == "A user." and user.__name__ == "user"
    assert user.cache_key(1) == "user:1:plain" and client.get("user:2:plain") == b"2"
    client.delete(user.cache_key(1))
    assert user(1) == b"1" and len(calls) == 3
    with pytest.raises(TypeError):
        user()

    by_function = cached(client, key=lambda number: f"by:{number}")(lambda number: b"%d" % number)
    assert by_function(3) == client.get("by:3") == b"3"


def test_the_decorators_own_keys(client):
    @cached(client)
    def function(*args, **kwargs):
        return b"value"

    name = "test_fetch.test_the_decorators_own_keys.<locals>.function"
    assert function.cache_key(1, "a") == name + ":((1,'a'),{})"
    keys = [function.cache_key(*args) for args in [(1,), ("1",), ("a b",), ("täxt",), ("x" * 300,), ("x" * 301,), ("\ud800",), (None,), ()]]
    assert len(set(keys)) == len(keys) and all(len(key) <= 250 and " " not in key for key in keys)
    for args in [(1,), ("a b",), ("x" * 300,), ("\n",)]:
        assert function(*args) == b"value" and client.get(function.cache_key(*args)) == b"value"
    for argument in (object(), [never], {1: object()}):
        with pytest.raises(TypeError, match="say how the key is made"):
            function(argument)


class Ticks:
    """Counts the turns of an event loop while it lives."""

    def __init__(self):
        self.count = 0

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()

    async def run(self):
        while True:
            await asyncio.sleep(0)
            self.count += 1

    async def go_on(self, more=100):
        """Until the loop has made so many more turns."""
        enough = self.count + more
        while self.count < enough:
            await asyncio.sleep(0)


def in_loop(function):
    """A test that is a coroutine function."""

    @functools.wraps(function)
    def test(*args, **kwargs):
        asyncio.run(asyncio.wait_for(function(*args, **kwargs), HANGS_AFTER_S))

    return test


def is_at_rest():
    return not tasks._busy and not tasks._queues


@in_loop
async def test_tasks_of_a_loop_compute_once(client):
    computed, end = [], asyncio.Event()

    async def compute():
        computed.append(1)
        await end.wait()
        return b"value"

    async with Ticks() as ticks:
        fetches = [asyncio.ensure_future(client.fetch_async("key", compute, ttl=60, wait=HANGS_AFTER_S)) for _ in range(50)]
        await ticks.go_on()
        assert len(computed) == 1
        # Another client of the place, and a thread.
        fetches.append(asyncio.ensure_future(keyway_cache.Client(client.server).fetch_async("key", compute, wait=HANGS_AFTER_S)))
        thread = asyncio.get_running_loop().run_in_executor(None, lambda: client.fetch("key", never, wait=HANGS_AFTER_S))
        await ticks.go_on()
        end.set()
        assert await asyncio.gather(*fetches) == [b"value"] * 51 and await thread == b"value"
        assert len(computed) == 1 and await client.fetch_async("key", compute) == b"value"
    assert is_at_rest()


@in_loop
async def test_a_loop_goes_on_while_others_compute(client):
    async def never_computes():
        never()

    async with Ticks() as ticks:
        with Holder(client, "key") as holder, Holder(client, "other"):
            fetches = [asyncio.ensure_future(client.fetch_async("key", never_computes, wait=HANGS_AFTER_S)) for _ in range(30)]
            await ticks.go_on()
            with pytest.raises(keyway_cache.MemcacheInFlightError):
                await client.fetch_async("other", never_computes, wait=0.05, compute_after_wait=False)
            await ticks.go_on()
            assert not any(fetch.done() for fetch in fetches)
            holder.finish()
            assert await asyncio.gather(*fetches) == [b"the holder's"] * 30
    assert is_at_rest()


@in_loop
async def test_a_task_succeeds_the_dead(client):
    computed = []

    async def compute():
        computed.append(1)
        return b"value"

    with Holder(client, "key") as holder:
        fetches = [asyncio.ensure_future(client.fetch_async("key", compute, wait=HANGS_AFTER_S)) for _ in range(10)]
        async with Ticks() as ticks:
            await ticks.go_on()
        holder.kill()
        assert await asyncio.gather(*fetches) == [b"value"] * 10 and len(computed) == 1


@in_loop
async def test_more_keys_are_waited_for_than_there_are_threads(client):
    number = tasks.WAITERS * 2
    ready = threading.Barrier(number + 1)

    def hold(index):
        return client.fetch(f"key:{index}", lambda: [ready.wait(), end.wait()] and b"%d" % index)

    async def never_computes():
        never()

    end = threading.Event()
    threads = threading.Thread(target=in_threads, args=(number, hold))
    threads.start()
    ready.wait()
    async with Ticks() as ticks:
        fetches = [asyncio.ensure_future(client.fetch_async(f"key:{index}", never_computes, wait=HANGS_AFTER_S)) for index in range(number)]
        await ticks.go_on()
        assert sum(thread.name.startswith("keyway-wait") for thread in threading.enumerate()) <= tasks.WAITERS
        end.set()
        assert await asyncio.gather(*fetches) == [b"%d" % index for index in range(number)]
    threads.join()


@in_loop
async def test_who_is_cancelled(client):
    begun, computed = asyncio.Event(), []

    async def endless():
        begun.set()
        await asyncio.Event().wait()

    async def compute():
        computed.append(1)
        return b"value"

    async with Ticks() as ticks:
        first = asyncio.ensure_future(client.fetch_async("key", endless))
        await begun.wait()
        waiting = [asyncio.ensure_future(client.fetch_async("key", compute, wait=HANGS_AFTER_S)) for _ in range(3)]
        await ticks.go_on()
        waiting[0].cancel()
        await ticks.go_on()
        assert waiting[0].cancelled() and not first.done() and not computed, "its own wait has ended, and no computation"
        first.cancel()
        assert await asyncio.gather(*waiting[1:]) == [b"value"] * 2 and len(computed) == 1
        with pytest.raises(asyncio.CancelledError):
            await first
        with Holder(client, "held") as holder:
            waiting = [asyncio.ensure_future(client.fetch_async("held", compute, wait=HANGS_AFTER_S)) for _ in range(2)]
            await ticks.go_on()
            waiting[0].cancel()
            await ticks.go_on()
            holder.finish()
            assert await waiting[1] == b"the holder's" and waiting[0].cancelled() and len(computed) == 1
    assert is_at_rest()


@in_loop
async def test_a_tasks_failures(client):
    async def failing():
        fails()

    async def value():
        return b"old"

    async def deletes():
        client.delete("key")
        return b"read before"

    kept = {"ttl": 1, "stale_if_error": 60}
    with pytest.raises(Failed):
        await client.fetch_async("key", failing)
    assert await client.fetch_async("key", value, **kept) == b"old"
    expires(client, "key")
    assert await client.fetch_async("key", failing, **kept) == b"old"
    with pytest.raises(Failed):
        await client.fetch_async("key", failing)
    client.delete("key")
    assert await client.fetch_async("key", deletes) == b"read before" and client.get("key") is None

    async def nothing():
        return None

    assert await client.fetch_async("none", nothing, negative_ttl=60) is None
    assert await client.fetch_async("none", failing) is None
    with pytest.raises(keyway_cache.MemcacheRegionError):
        await keyway_cache.Client("/dev/null/none").fetch_async("key", value)
    assert await keyway_cache.Client("/dev/null/none", ignore_exc=True).fetch_async("key", value) == b"old"
    assert is_at_rest()


@in_loop
async def test_a_tasks_own_computation(client):
    async def value():
        return b"value"

    async def same():
        return await client.fetch_async("key", value)

    async def in_another_task():
        return await asyncio.ensure_future(client.fetch_async("key", value))

    async def inner():
        return await client.fetch_async("inner", value)

    for own in (same, in_another_task):
        with pytest.raises(keyway_cache.MemcacheRecursionError):
            await client.fetch_async("key", own)
    assert await client.fetch_async("key", inner) == b"value"


@in_loop
async def test_a_limit_on_tasks(client):
    now, most = [], []

    async def compute():
        now.append(1)
        most.append(len(now))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now.pop()
        return b"value"

    async with Ticks() as ticks:
        fetches = [client.fetch_async(f"row:{number}", compute, wait=HANGS_AFTER_S, limit=("row:", 3)) for number in range(40)]
        assert await asyncio.gather(*fetches) == [b"value"] * 40
        assert max(most) == 3
        with Holder(client, "one", "limited") as holder:
            with pytest.raises(keyway_cache.MemcacheLimitError):
                await client.fetch_async("two", compute, wait=0.02, limit=("", 1))
            waiting = [asyncio.ensure_future(client.fetch_async("two", compute, wait=HANGS_AFTER_S, limit=("", 1))) for _ in range(3)]
            await ticks.go_on()
            waiting[0].cancel()
            await ticks.go_on()
            holder.kill()
            assert await asyncio.gather(*waiting[1:]) == [b"value"] * 2
    assert is_at_rest()


@in_loop
async def test_the_decorator_of_a_coroutine_function(client):
    calls = []

    @cached(client, key="user:{number}", ttl=60)
    async def user(number):
        calls.append(number)
        await asyncio.sleep(0)
        return b"%d" % number

    assert await asyncio.gather(user(1), user(number=1), user(2)) == [b"1", b"1", b"2"] and calls == [1, 2]
    assert asyncio.iscoroutinefunction(user) and user.cache_key(1) == "user:1"


@in_loop
async def test_a_fork_of_a_loop(client):
    """A child has none of its parent's threads."""

    async def never_computes():
        never()

    async def in_child():
        with Holder(client, "other") as holder:
            fetch = asyncio.ensure_future(client.fetch_async("other", never_computes, wait=HANGS_AFTER_S))
            async with Ticks() as ticks:
                await ticks.go_on()
            holder.finish()
            return await fetch == b"the holder's"

    with Holder(client, "key"):
        with pytest.raises(keyway_cache.MemcacheInFlightError):
            await client.fetch_async("key", never_computes, wait=0.02, compute_after_wait=False)
        child = os.fork()
        if child == 0:
            is_well = []
            thread = threading.Thread(target=lambda: is_well.append(asyncio.run(in_child())))
            thread.start()
            thread.join()
            os._exit(0 if is_well == [True] else 1)
        assert os.waitpid(child, 0) == (child, 0)


@pytest.fixture(scope="module")
def documented():
    """The functions in the examples of docs/fetch.md."""
    text = (pathlib.Path(__file__).parents[3] / "docs/fetch.md").read_text()
    functions = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, functions)
    return functions


def test_the_page_of_the_documents(client, documented):
    assert documented["front_page"](client, lambda: "<p>one") == b"<p>one"
    assert documented["front_page"](client, never) == b"<p>one"


def test_the_row_of_the_documents(client, documented):
    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)")
    db.execute("INSERT INTO users VALUES (7, 'Ann')")
    user, rename = documented["user"], documented["rename"]
    assert user(client, db, 7) == b"Ann"
    db.execute("UPDATE users SET name = 'Eve' WHERE id = 7")
    assert user(client, db, 7) == b"Ann", "it is in the cache"
    rename(client, db, 7, "Bob")
    assert user(client, db, 7) == b"Bob"
    assert user(client, db, 8) is None
    db.execute("INSERT INTO users VALUES (8, 'Kim')")
    assert user(client, db, 8) is None, "it is remembered that there is none"

    class Renamed:
        """A database that another process changes while a row is read."""

        def execute(self, *query):
            self.row = db.execute(*query).fetchone()
            rename(client, db, 7, "Max")
            return self

        def fetchone(self):
            return self.row

    client.delete("user:7")
    assert user(client, Renamed(), 7) == b"Bob", "what was read"
    assert user(client, db, 7) == b"Max", "and what is stored is never older than the delete"


def test_the_token_of_the_documents(client, documented):
    logins = iter(["first"])
    token = documented["token"]
    assert token(client, lambda: next(logins)) == b"first"
    assert all(token(client, fails) == b"first" for _ in range(100))
