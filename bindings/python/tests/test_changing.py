"""Arguments that change during a call, and that are the same memory.

Its enemies: a key that is another one when it is written than when it was hashed, a value that is verified while it changes, a buffer that
is a key and a value. A thread that does not hold the interpreter's lock writes to keys, and another process to values, all the time.
KEYWAY_TESTS_FULL: for a minute.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import pytest

import keyway_cache
from keyway_cache.exceptions import MemcacheClientError

SECONDS = 5 if os.environ.get("KEYWAY_TESTS_FULL") else 0.4
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
VALUE_SIZE = 3000
STABLE = 16


def place_of(data):
    """Where the interpreter has the bytes of a bytes object. ctypes writes there while other threads hold its lock."""
    return id(data) + sys.getsizeof(b"") - 1


def named(length, first, second):
    """A key of this length as it is at some moment."""
    name = bytearray(b"k" * length)
    name[length // 2], name[length - 1] = first, second
    return bytes(name)


def change_keys(keys, over):
    turn = 0
    places = [(place_of(key) + len(key) // 2, place_of(key) + len(key) - 1) for key in keys]
    while not over.is_set():
        turn += 1
        letter = LETTERS[turn % len(LETTERS)]
        for place in places:
            ctypes.memset(place[0], letter, 1)
            ctypes.memset(place[1], letter, 1)


def change_value(name):
    """In another process, which is ended when there has been enough of it."""
    memory = shared_memory.SharedMemory(name)
    place = ctypes.addressof(ctypes.c_char.from_buffer(memory.buf))
    while True:
        for letter in LETTERS:
            ctypes.memset(place, letter, VALUE_SIZE)


def stable(number):
    """An item that nothing changes: its key, and the only value that it ever has."""
    key = f"stable-{number:02}"
    return key, (key.encode() + b".") * (1 + number * 7)


def is_whole(value):
    """Letters and digits, in any mixture, and the blanks after a number that has become shorter."""
    text = value.rstrip(b" ")
    return all(byte in LETTERS or 0x30 <= byte <= 0x39 or byte == 0x20 for byte in set(text))


def call(client, turn, keys, value):
    """One call of each function."""
    key, other = keys[turn % 2], keys[(turn + 1) % 2]
    part = value[: 1 + turn * 37 % (len(value) - 1)]
    few = value[: 1 + turn % 8]
    name, whole = stable(turn % STABLE)
    seen = []
    client.set(key, part)
    client.add(key, part)
    client.replace(key, bytearray(part))
    client.append(key, few)
    client.prepend(key, few)
    seen.append(client.get(key))
    seen.append(client.gat(key, 1000))
    found, unique = client.gets(key)
    seen.append(found)
    seen.append(client.gats(key, 1000)[0])
    if unique is not None:
        client.cas(key, part, unique)
    client.set_many({key: part, name: whole})
    # Results are by the keys' present bytes, so what is stable is told by its value.
    several = client.get_many([key, other, name])
    seen.extend(found for found in several.values() if found != whole)
    assert whole in several.values()
    seen.extend(found for found, _ in client.gets_many([other, key]).values())
    client.touch(key, 1000)
    if turn % 3 == 0:
        client.delete(key)
        client.add(key, b"5")
    for count in (client.incr, client.decr):
        try:
            count(key, 1 + turn % 7)
        except MemcacheClientError as error:
            assert "number" in str(error) or "numeric" in str(error), error
    if turn % 5 == 0:
        client.delete_many([other, key])
    # One object is the key and the value, and the value is memory of the key.
    client.set(key, key)
    client.append(key, memoryview(key))
    client.set_many({key: memoryview(key)[1:]})
    client.delete(key)
    for found in seen:
        assert found is None or is_whole(found), found
    assert client.get(name) == whole


def counted(client, lengths):
    """How many items are found by all names that there can be."""
    count = sum(client.get(stable(number)[0]) is not None for number in range(STABLE))
    for length in lengths:
        names = [named(length, first, second) for first in LETTERS for second in LETTERS]
        count += len(client.get_many(names))
    return count


@pytest.mark.parametrize("checksums", [False, True])
@pytest.mark.parametrize("lengths", [(3, 7), (12, 16), (40, 250)])
def test_arguments_change_and_are_the_same_memory(path, checksums, lengths):
    # Objects that nothing else has: made here, so that the compiler does not share them.
    keys = [named(length, 0x41, 0x41) for length in lengths]
    value = shared_memory.SharedMemory(create=True, size=VALUE_SIZE)
    changer = multiprocessing.get_context("spawn").Process(target=change_value, args=(value.name,))
    over = threading.Event()
    thread = threading.Thread(target=change_keys, args=(keys, over))
    before = bytes(value.buf[:1])
    changer.start()
    try:
        while bytes(value.buf[:1]) == before:
            assert changer.is_alive()
        with keyway_cache.Client(path, memory=32 << 20, checksums=checksums, default_noreply=False) as client:
            for number in range(STABLE):
                client.set(*stable(number))
            thread.start()
            try:
                end, turn = time.monotonic() + SECONDS, 0
                while time.monotonic() < end or turn < 20:
                    call(client, turn, keys, value.buf[:VALUE_SIZE])
                    turn += 1
            finally:
                over.set()
                thread.join()
            stats = client.stats()
            assert stats[b"corrupt"] == 0
            assert stats[b"curr_items"] == counted(client, lengths)
    finally:
        changer.kill()
        changer.join()
        value.close()
        value.unlink()
    checked = subprocess.run([os.environ["KEYWAY"], "check", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
