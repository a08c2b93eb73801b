"""Processes that fork, are forked by multiprocessing, and are killed.

Guards: P26, P30

Its enemies: a child that hangs on a lock of its parent's, uses its parent's session, or writes what nobody sees; a dead process
whose slots stay taken, or whose half-done work is seen.
"""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

import keyway_cache

HANGS_AFTER_S = 60


def in_a_fork(work):
    """Runs `work` in a forked child; its text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = str(work())
        except BaseException as error:
            result = f"raised {type(error).__name__}: {error}"
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, (status, text)
    return text


def test_a_forked_child_goes_on(client):
    client.set("key", b"the parent's")

    def child():
        seen = client.get("key")
        client.set("child", b"was here")
        return seen, client.incr("none", 1), in_a_fork(lambda: client.get("child"))

    assert in_a_fork(child) == str((b"the parent's", None, str(b"was here")))
    assert client.get("child") == b"was here"
    client.set("key", b"still")
    assert client.get("key") == b"still"


def test_a_child_may_close_what_its_parent_uses(client):
    client.set("key", b"value")

    def child():
        client.close()
        return client.get("key"), client.close()

    assert in_a_fork(child) == str((b"value", None))
    assert client.get("key") == b"value"


def test_anonymous_memory_stays_with_the_parent():
    client = keyway_cache.Client("memfd", memory=4 << 20)
    client.set("key", b"value")
    assert "raised MemcacheRegionError: this process was forked" in in_a_fork(lambda: client.get("key"))
    assert client.get("key") == b"value"


def test_forks_beside_threads_that_call(client):
    end = threading.Event()

    def work():
        while not end.is_set():
            client.set("busy", b"v" * 1000)
            client.get("busy")
            keyway_cache.Client(client.server, memory=16 << 20).get("busy")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(60):
            assert in_a_fork(lambda: (client.set(f"child:{number}", b"1"), client.get("busy"))[0]) == "True"
    finally:
        end.set()
        for thread in threads:
            thread.join()
    assert len(client.get_many(f"child:{number}" for number in range(60))) == 60


def counts(path, times):
    client = keyway_cache.Client(path, default_noreply=False)
    for _ in range(times):
        client.incr("count", 1)
    return os.getpid()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(client, method):
    client.set("count", b"0")
    with multiprocessing.get_context(method).Pool(4) as pool:
        pool.starmap(counts, [(client.server, 250)] * 8)
    assert client.get("count") == b"2000"


WRITER = """
import sys, keyway_cache
client = keyway_cache.Client(sys.argv[1], memory=16 << 20, default_noreply=False)
number, turn = int(sys.argv[2]), 0
while True:
    turn += 1
    body = bytes([number]) * (turn * 37 % 3000)
    client.set(f"shared:{turn % 50}", b"%d:%d:" % (number, len(body)) + body)
    if turn % 7 == 0:
        client.delete(f"shared:{turn % 50}")
    if turn == 100:
        print("started", flush=True)
"""


def is_whole(value):
    number, length, body = value.split(b":", 2)
    return len(body) == int(length) and body == bytes([int(number)]) * int(length)


def test_killed_writers_leave_whole_values_and_no_slots(client):
    assert not is_whole(b"1:2:\1") and not is_whole(b"1:2:\1\2"), "what a torn value looks like"
    seen = 0
    for number in range(1, 13):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, client.server, str(number)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"started\n"
        for _ in range(20):
            found = client.get_many([f"shared:{n}" for n in range(50)])
            seen += len(found)
            assert all(map(is_whole, found.values()))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert seen > 500
    # What the dead held is taken back by whoever attaches next, whatever for.
    attaching = "import sys, keyway_cache; client = keyway_cache.Client(sys.argv[1]); client.get('key'); print(client.stats()[b'keyway_sessions'])"
    others = subprocess.run([sys.executable, "-c", attaching, client.server], stdout=subprocess.PIPE, check=True, timeout=HANGS_AFTER_S)
    assert others.stdout == b"2\n", "this thread's and that one's"
    assert client.stats()[b"recoveries"] >= 12


WITHOUT_A_SLOT = """
import os, signal, sys, threading, time
import keyway_cache
place, server = sys.argv[1], int(sys.argv[2])
client = keyway_cache.Client(place, default_noreply=False)
client.get("served")
threads = [threading.Thread(target=lambda: (client.set("hog", "x"), time.sleep(1000)), daemon=True) for _ in range(140)]
for thread in threads:
    thread.start()
while client.stats()[b"keyway_sessions"] + client.stats()[b"keyway_sessions_of_servers"] < client.stats()[b"keyway_sessions_max"]:
    time.sleep(0.01)
done = []
def served():
    assert client.set("served", "before")
    ready.set()
    go_on.wait()
    done.append(client.set("served", "after"))
ready, go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=served, daemon=True)
thread.start()
ready.wait()
os.kill(server, signal.SIGSTOP)
tasks = f"/proc/{server}/task"
while any(open(f"{tasks}/{task}/stat").read().rpartition(") ")[2][0] != "T" for task in os.listdir(tasks)):
    time.sleep(0.001)
go_on.set()
# The set waits for the server, and this thread goes on, with the same client.
for _ in range(2000):
    assert client.get("served") == b"before"
    time.sleep(0.0001)
assert not done
os.kill(server, signal.SIGCONT)
thread.join()
assert done == [True] and client.get("served") == b"after"
"""


def test_other_threads_go_on_while_one_waits_for_a_stopped_server(region_socket, server):
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(server)
        asking.sendall(b"stats\r\n")
        rows = asking.makefile("rb")
        pid = next(int(row.split()[2]) for row in rows if row.startswith(b"STAT pid "))
    try:
        subprocess.run([sys.executable, "-c", WITHOUT_A_SLOT, region_socket, str(pid)], check=True, timeout=HANGS_AFTER_S)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_who_has_no_memory_for_a_value_is_told(path):
    """A MemoryError, whether it is the copy out of the region that finds none or the object."""
    resource = pytest.importorskip("resource")
    size = 900_000
    client = keyway_cache.Client(path, memory=16 << 20, default_noreply=False)
    client.set("large", b"v" * size)
    client.set("small", b"s")

    def without_memory(has_buffer):
        if has_buffer:
            assert len(client.get("large")) == size
        else:
            client.get("small")
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used, unlimited[1]))
        hoard = []
        try:
            while True:
                hoard.append(bytearray(size // 2))
        except MemoryError:
            pass
        told = []
        for call in (
            lambda: client.get("large"),
            lambda: client.gets("large"),
            lambda: client.get_many(["small", "large"]),
            lambda: client.append("large", b"+"),
        ):
            try:
                call()
                told.append("done")
            except MemoryError:
                told.append("no memory")
        told.append(client.get("small"))
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
        return told, len(client.get("large"))

    for has_buffer in (False, True):
        told = in_a_fork(lambda: without_memory(has_buffer))
        assert told == str((["no memory"] * 4 + [b"s"], size)), has_buffer
