"""What keyway_cache.Client has that no other client has: places, attachments, what it says when there is no region, and threads.

Guards: P30

Its enemies: an attachment for each client, a slot that a thread keeps, a value that one thread gets of another's, a message that
does not say what is wrong.
"""

import ast
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

import keyway_cache


def sessions(client):
    return client.stats()[b"keyway_sessions"]


MEMORY = 16 << 20


def until(condition):
    """Waits for what threads do when they have ended for Python, and not yet for the system."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def attached():
    """How many mappings of regions this process has."""
    with open("/proc/self/maps") as maps:
        return sum("keyway-pytest" in line for line in maps)


def test_places(path, region_socket):
    with keyway_cache.Client(path, memory=MEMORY) as by_text, keyway_cache.Client(pathlib.Path(path)) as by_path, keyway_cache.Client(f"unix:{path}") as by_unix:
        by_text.set("key", b"value")
        assert by_path.get("key") == by_unix.get("key") == b"value"
        assert by_path.server == path and repr(by_text) == f"<keyway_cache.Client {path}>"
    assert keyway_cache.Client(pathlib.Path(region_socket)).version() == keyway_cache.__version__.encode()
    for wrong in [("127.0.0.1", 11211), None, 5]:
        with pytest.raises(TypeError, match="pymemcache"):
            keyway_cache.Client(wrong)


def test_an_address_is_no_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address in ["127.0.0.1:11211", "localhost", "cache.example.org:11211", "unix:localhost", pathlib.Path("127.0.0.1")]:
        with pytest.raises(ValueError, match="is the address of a server.*--region-socket"):
            keyway_cache.Client(address)
    assert os.listdir() == []
    pathlib.Path("localhost:1").write_bytes(b"no region")
    with pytest.raises(keyway_cache.MemcacheRegionError, match="the file was not changed"):
        keyway_cache.Client("localhost:1").get("key")


def test_a_client_without_a_slot_is_served(region_socket):
    """By the server, when other processes and threads have taken all."""
    with keyway_cache.Client(region_socket, default_noreply=False) as client:
        room = client.stats()[b"keyway_sessions_max"] - client.stats()[b"keyway_sessions_of_servers"]
        enough, done, answers = threading.Barrier(room + 1), threading.Event(), []

        def work(number):
            enough.wait()
            client.set(f"slot:{number}", b"%d" % number)
            answers.append(client.get(f"slot:{number}") == b"%d" % number)
            done.wait()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(room)]
        for thread in threads:
            thread.start()
        enough.wait()
        # Some of them have found no slot: the server itself has taken a few.
        until(lambda: len(answers) == room)
        assert all(answers) and sessions(client) <= room
        assert client.get_many([f"slot:{number}" for number in range(room)]) == {f"slot:{number}": b"%d" % number for number in range(room)}
        done.set()
        for thread in threads:
            thread.join()


def test_clients_of_one_place_share_an_attachment(path):
    clients = [keyway_cache.Client(path, memory=MEMORY) for _ in range(300)]
    for number, client in enumerate(clients):
        client.set(f"key:{number}", b"value")
    assert attached() == 1
    until(lambda: sessions(clients[0]) == 1)
    for client in clients[1:]:
        client.close()
    assert clients[0].get("key:299") == b"value"
    clients[0].close()
    assert attached() == 0
    assert clients[7].get("key:8") == b"value", "the next call opens it again"
    del clients, client
    gc.collect()
    assert attached() == 0


def test_another_file_under_the_name_is_another_region(path):
    old = keyway_cache.Client(path, memory=MEMORY)
    old.set("key", b"old")
    os.remove(path)
    new = keyway_cache.Client(path, memory=MEMORY)
    assert new.get("key") is None
    new.set("key", b"new")
    assert old.get("key") == b"old" and keyway_cache.Client(path).get("key") == b"new"


def test_anonymous_memory_is_one_clients_own():
    one, other = keyway_cache.Client("memfd", memory=4 << 20), keyway_cache.Client("memfd", memory=4 << 20)
    one.set("key", b"value")
    assert one.get("key") == b"value" and other.get("key") is None


def test_memory_and_sizes(path):
    small = keyway_cache.Client(path, memory=4 << 20, default_noreply=False)
    assert small.stats()[b"limit_maxbytes"] <= 4 << 20
    assert small.cache_memlimit(8) is True
    assert 4 << 20 < small.stats()[b"limit_maxbytes"] <= 8 << 20
    assert small.cache_memlimit(6) is True and 4 << 20 < small.stats()[b"limit_maxbytes"] <= 6 << 20
    assert small.cache_memlimit(1) is True and 1 << 20 < small.stats()[b"limit_maxbytes"] < 4 << 20
    with pytest.raises(keyway_cache.MemcacheServerError, match="MiB"):
        small.cache_memlimit(1 << 30)


def test_the_largest_item_is_a_rule_of_the_region(path):
    first = keyway_cache.Client(path, memory=64 << 20, item_size_max=16 << 20, default_noreply=False)
    assert first.set("small", b"x") is True, "the first call makes the region"
    second = keyway_cache.Client(path, item_size_max=1 << 20, default_noreply=False)
    value = os.urandom(15 << 20)
    assert second.set("large", value) is True and first.get("large") == value
    with pytest.raises(keyway_cache.MemcacheServerError, match="the region allows 16777216"):
        second.set("large", os.urandom(17 << 20))
    assert first.get("large") is None, "as a server does, it forgets what could not be replaced"
    assert second.stats("settings")[b"item_size_max"] == 16 << 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 1}, "1 bytes of memory .* at least 2097152 bytes .* request more"),
        ({"memory": 1 << 60}, "at most .* request less"),
        ({"item_size_max": 1}, "item of 1 bytes .* 1024 to"),
        ({"item_size_max": 3 << 20, "memory": 4 << 20}, "1024 to 2097152 bytes .* or more memory"),
        ({"mode": 0o1777}, "0o1777 .* leave the other bits out"),
        ({"memory": -1}, "memory is -1: it must be from 0"),
        ({"memory": 1 << 64}, "memory is 18446744073709551616: .* to 18446744073709551615"),
        ({"item_size_max": -5}, "item_size_max is -5"),
        ({"mode": -1}, "mode is -1: it must be from 0 to 4294967295"),
    ],
)
def test_a_value_outside_its_limits_is_refused_before_anything_is_opened(path, options, message):
    with pytest.raises(ValueError, match=message):
        keyway_cache.Client(path, **options)
    assert not os.path.exists(path)


def test_a_large_item_needs_no_memory_argument(path):
    with keyway_cache.Client(path, memory=128 << 20) as client:
        client.set("key", b"value")
        assert keyway_cache.Client(path, item_size_max=48 << 20).get("key") == b"value"


def test_checksums(path):
    plain = keyway_cache.Client(f"{path}-plain", memory=MEMORY)
    plain.set("key", b"value")
    with keyway_cache.Client(path, memory=MEMORY, checksums=True) as checked:
        checked.set("key", b"value")
        assert checked.get("key") == keyway_cache.Client(path).get("key") == b"value"
    with pytest.raises(keyway_cache.MemcacheRegionError, match="checksums"):
        keyway_cache.Client(plain.server, checksums=True).get("key")
    os.remove(plain.server)


STRAY_READ = """
import ctypes, sys, keyway_cache
client = keyway_cache.Client(sys.argv[1], memory=4 << 20, gate=sys.argv[2] == "on")
client.set("key", b"value")
with open("/proc/self/maps") as maps:
    start = next(int(line.split("-")[0], 16) for line in maps if sys.argv[1] in line)
print(client.stats("settings")[b"keyway_gate"].decode(), client.get("key"), flush=True)
print(len(ctypes.string_at(start, 8)), flush=True)
"""


def test_the_gate(path):
    """A stray read faults where there are protection keys, and only where they are wanted."""

    def ending(gate):
        # The environment outranks the program: both are the test's own.
        environment = {name: value for name, value in os.environ.items() if name != "KEYWAY_GATE"}
        command = [sys.executable, "-c", STRAY_READ, path, gate]
        reading = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
        return reading.returncode, reading.stdout

    assert ending("off") == (0, "off b'value'\n8\n")
    status, output = ending("on")
    if output.startswith("on"):
        assert (status, output) == (-signal.SIGSEGV, "on b'value'\n")
    else:
        assert status == 0 and output.startswith("none: ") and output.endswith("\n8\n")


def test_without_eviction_a_full_region_says_so(path):
    client = keyway_cache.Client(path, memory=2 << 20, item_size_max=1 << 19, evict=False, default_noreply=False)
    with pytest.raises(keyway_cache.MemcacheServerError, match="out of memory"):
        for number in range(1000):
            client.set(f"key:{number}", b"v" * 10_000)
    quiet = keyway_cache.Client(path, memory=2 << 20, item_size_max=1 << 19, evict=False)
    assert quiet.set("more", b"v" * 100_000) is True, "who wants no reply is not told"


def test_there_is_no_region(path):
    for client in [keyway_cache.Client(path), keyway_cache.Client(f"{path}/not/a/folder")]:
        for call in [
            lambda: client.get("key"),
            lambda: client.get_many(["key"]),
            lambda: client.set("key", b"value", noreply=True),
            lambda: client.incr("key", 1, noreply=True),
            lambda: client.delete_many(["key"], noreply=True),
            lambda: client.stats(),
        ]:
            with pytest.raises(keyway_cache.MemcacheRegionError, match=f"{path}.*memory=|{path}/not") as caught:
                call()
            assert isinstance(caught.value, OSError) and isinstance(caught.value, keyway_cache.MemcacheServerError)
    forgiving = keyway_cache.Client(path, ignore_exc=True)
    assert forgiving.get("key", 5) == 5
    assert forgiving.gets("key", 5, 6) == (5, 6)
    assert forgiving.get_many(["key"]) == forgiving.gets_many(["key"]) == {}
    with pytest.raises(keyway_cache.MemcacheIllegalInputError):
        forgiving.get("bad key")
    assert not os.path.exists(path), "no call has made a region without a size"
    keyway_cache.Client(path, memory=MEMORY).set("key", b"now")
    assert forgiving.get("key") == b"now"


def test_what_is_no_region_is_left_alone(path):
    with open(path, "wb") as file:
        file.write(b"precious" * 1000)
    with pytest.raises(keyway_cache.MemcacheRegionError, match="the file was not changed"):
        keyway_cache.Client(path).get("key")
    with open(path, "rb") as file:
        assert file.read() == b"precious" * 1000


def test_get_and_touch(client):
    assert client.gat("key", 100) is None and client.gat("key", 100, default=5) == 5
    assert client.gats("key", 100) == (None, None) and client.gats("key", 100, 5, 6) == (5, 6)
    client.set("key", b"value")
    assert client.gat("key", expire=100) == b"value"
    assert client.gats("key", 100) == client.gets("key")
    assert client.gat("key", -1) == b"value", "it was there"
    assert client.get("key") is None
    with pytest.raises(keyway_cache.MemcacheIllegalInputError):
        client.gat("key", "soon")


def test_keys_that_are_none(client):
    for key in ["", b"", " ", "\t\n", "\x0b", "\r", "a b", "nul\0", "k" * 251, "é"]:
        for call in [client.get, client.gets, client.touch, client.delete, lambda key: client.set(key, b"value")]:
            with pytest.raises(keyway_cache.MemcacheIllegalInputError, match="the key"):
                call(key)
    for length in range(1, 40):
        for at in range(length):
            for char in b"\0\t\n\x0b\x0c\r ":
                key = b"k" * at + bytes([char]) + b"\xff" * (length - at - 1)
                with pytest.raises(keyway_cache.MemcacheIllegalInputError, match="white space|zero byte"):
                    client.get(key)
            key = b"\x21" * at + b"\x01" + b"\x80" * (length - at - 1)
            client.set(key, key)
            assert client.get(key) == key
    for key in [None, 5, 1.5, ["key"], bytearray(b"key")]:
        with pytest.raises(TypeError, match="str or bytes"):
            client.get(key)
    with pytest.raises(keyway_cache.MemcacheIllegalInputError):
        keyway_cache.Client("memfd", key_prefix="p" * 200).get("k" * 51)
    with pytest.raises(TypeError):
        keyway_cache.Client("memfd", key_prefix=5)
    with pytest.raises(UnicodeEncodeError):
        keyway_cache.Client("memfd", key_prefix="é")


def test_bytes_like_values(client):
    for value in [bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"b-y-t-e-s")[::2]]:
        client.set("key", value)
        assert client.get("key") == b"bytes"


def test_iterables(client):
    client.set_many({"a": b"1", "b": b"2"})
    assert client.get_many(key for key in ("a", "b", "none")) == {"a": b"1", "b": b"2"}
    assert client.get_many({"a": 0, "b": 0}.keys()) == client.get_many(("a", "b")) == client.get_many({"b", "a"})
    assert client.get_many(["a", b"a"]) == {"a": b"1", b"a": b"1"}
    assert client.delete_many(iter(["a", "b"])) is True and client.get_many(["a", "b"]) == {}
    with pytest.raises(TypeError):
        client.get_many(5)
    with pytest.raises(AttributeError):
        client.set_many([("a", b"1")])


def test_statistics(client):
    before = client.stats()
    client.set("key", b"value")
    client.get("key")
    client.get("none")
    after = client.stats()
    grown = {name for name in after if after[name] != before.get(name)}
    assert {b"cmd_get", b"cmd_set", b"get_hits", b"get_misses", b"curr_items"} <= grown
    assert after[b"pid"] == os.getpid() and after[b"pointer_size"] == 64
    assert client.stats("settings")[b"maxbytes"] == client.stats(b"settings")[b"maxbytes"] > 0
    with pytest.raises(keyway_cache.MemcacheClientError, match="only a server"):
        client.stats("slabs")


def test_it_can_be_derived_and_referred_to(path):
    class Counting(keyway_cache.Client):
        def __init__(self, server, **_):
            self.gets_done = 0

        def get(self, key, default=None):
            self.gets_done += 1
            return super().get(key, default)

    client = Counting(path, memory=MEMORY, default_noreply=False)
    assert client.get("none") is None
    with pytest.raises(KeyError):
        client["none"]
    assert client.gets_done == 1, "a derived get is not called by other methods"
    reference = weakref.ref(client)
    del client
    assert reference() is None


def test_a_serde_may_use_the_client(client, path):
    class Referring:
        def serialize(self, key, value):
            client.set(f"{key}:copy", value)
            return value, 1

        def deserialize(self, key, value, flags):
            return value, client.get(f"{key}:copy")

    referring = keyway_cache.Client(path, serde=Referring(), memory=16 << 20, default_noreply=False)
    referring.set("key", b"value")
    assert referring.get("key") == (b"value", b"value")
    assert referring.get_many(["key"]) == {"key": (b"value", b"value")}


@pytest.mark.parametrize("holder", ["serde", "functions"])
def test_a_client_that_its_serde_refers_to_is_collected(path, holder):
    class Referring:
        def serialize(self, key, value):
            return value, 0

        def deserialize(self, key, value, flags):
            return self.client.get("other", value)

    converter = Referring()
    if holder == "serde":
        client = keyway_cache.Client(path, memory=MEMORY, serde=converter)
    else:
        client = keyway_cache.Client(path, memory=MEMORY, serializer=converter.serialize, deserializer=converter.deserialize)
    converter.client = client
    client.set("key", b"value")
    references = [weakref.ref(client), weakref.ref(converter)]
    assert attached() == 1
    del client, converter
    gc.collect()
    assert [reference() for reference in references] == [None, None] and attached() == 0


@pytest.mark.parametrize("way_out", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_is_no_failure_to_ignore(path, way_out):
    class Interrupted:
        def serialize(self, key, value):
            return value, 0

        def deserialize(self, key, value, flags):
            raise way_out

    client = keyway_cache.Client(path, memory=MEMORY, serde=Interrupted(), ignore_exc=True)
    client.set("key", b"value")
    for call in [lambda: client.get("key"), lambda: client.gets("key"), lambda: client.gat("key"), lambda: client.get_many(["key"])]:
        with pytest.raises(way_out):
            call()


def test_threads_count_and_get_whole_values(client):
    client.set("count", b"0")
    wrong = []

    def work(number):
        for turn in range(500):
            client.incr("count", 1)
            client.set("shared", bytes([number]) * (100 + turn))
            value = client.get("shared")
            if len(set(value)) != 1 or len(value) < 100:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and client.get("count") == b"4000"
    until(lambda: sessions(client) == 1)


def test_large_values_are_written_beside_other_threads(path):
    client = keyway_cache.Client(path, memory=128 << 20, item_size_max=16 << 20, default_noreply=False)
    values = [bytes([number]) * (5 << 20) for number in range(4)]
    done = []

    def work(number):
        for _ in range(5):
            assert client.set(f"own:{number}", values[number]) is True
            assert client.get(f"own:{number}") == values[number]
            client.set("shared", values[number])
            assert client.get("shared") in values
            assert client.set_many({f"many:{number}:{n}": values[number] for n in range(2)}) == []
        done.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]


def test_more_threads_than_slots(path):
    client = keyway_cache.Client(path, memory=4 << 20, item_size_max=1 << 20, default_noreply=False)
    slots = client.stats()[b"keyway_sessions_max"]
    outcomes = {"well": 0, "full": 0}
    count, everybody = threading.Lock(), threading.Barrier(slots + 8)

    def work():
        try:
            client.set("key", b"value")
            outcome = "well"
        except keyway_cache.MemcacheRegionError as error:
            outcome = "full" if "threads" in str(error) else str(error)
        with count:
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
        everybody.wait()

    threads = [threading.Thread(target=work) for _ in range(slots + 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(outcomes) == {"well", "full"} and outcomes["full"] >= 8 and outcomes["well"] >= slots // 2, outcomes
    assert client.get("key") == b"value"
    until(lambda: sessions(client) == 1)


def test_closing_while_others_call(path):
    client = keyway_cache.Client(path, memory=4 << 20, item_size_max=1 << 20, default_noreply=False)
    end = threading.Event()
    wrong = []

    def work():
        while not end.is_set():
            if client.set("key", b"value") is not True or client.get("key") != b"value":
                wrong.append("lost")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        client.close()
        client.get("key")
    end.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_stubs_name_what_is_there():
    stub = pathlib.Path(keyway_cache.__file__).with_name("_keyway.pyi")
    classes = {node.name: node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)}
    told = {node.name: node.args for node in classes["Client"].body if isinstance(node, ast.FunctionDef)}
    present = {name for name in vars(keyway_cache.Client) if not name.startswith("__")}
    assert {name for name in told if not name.startswith("__")} == present
    for name, arguments in told.items():
        signature = getattr(vars(keyway_cache.Client).get(name), "__text_signature__", None)
        if signature and "*" not in signature and not name.startswith("__"):
            names = [argument.arg for argument in arguments.args]
            assert [part.split("=")[0].strip(" $()") for part in signature.split(",") if "/" not in part] == names, name
        assert name.startswith("__") or getattr(keyway_cache.Client, name).__doc__, f"{name} has no docstring"
    package = ast.parse(stub.with_name("__init__.pyi").read_text())
    assert {alias.name for node in package.body if isinstance(node, ast.ImportFrom) for alias in node.names} == set(keyway_cache.__all__)
