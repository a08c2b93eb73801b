"""Arguments that change during a call, and that are the same memory.

Guards: P28

Its enemies: a key that is another one when it is written than when it was hashed, a value that is verified while it changes, a buffer that
is a key and a value. Another process writes to keys and values all the time.
KEYWAY_TESTS_FULL: for a minute.
"""

import ctypes
import multiprocessing
import os
import subprocess
import sys
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
    """Where the interpreter has the bytes of a bytes object."""
    return id(data) + sys.getsizeof(b"") - 1


def named(length, first, second):
    """A key of this length as it is at some moment."""
    name = bytearray(b"K" * length)
    name[length // 2], name[length - 1] = first, second
    return bytes(name)


class Part(ctypes.Structure):
    """struct iovec of process_vm_writev(2)."""

    _fields_ = [("place", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def change(program, places, value):
    """In another process, until it is ended: writes the same letter to all places of the program's keys, and to the shared value, then the
    next letter."""
    memory = shared_memory.SharedMemory(value)
    shared = ctypes.addressof(ctypes.c_char.from_buffer(memory.buf))
    letters = ctypes.create_string_buffer(LETTERS)
    at = ctypes.addressof(letters)
    count = len(places) * len(LETTERS)
    own = (Part * count)(*[(at + letter, 1) for letter in range(len(LETTERS)) for _ in places])
    its = (Part * count)(*[(place, 1) for place in places] * len(LETTERS))
    write = ctypes.CDLL(None, use_errno=True).process_vm_writev
    write.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
    while True:
        for letter in LETTERS:
            ctypes.memset(shared, letter, VALUE_SIZE)
            if write(program, own, count, its, count, 0) != count:
                sys.exit(f"process_vm_writev: {os.strerror(ctypes.get_errno())}")


def let_others_write():
    """Where the system asks for it, lets other processes of the user write to this one (prctl(2), PR_SET_PTRACER, any)."""
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)


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
    # Results are by the keys' present bytes, so a stable result is recognised by its value.
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
    places = [place_of(key) + at for key in keys for at in (len(key) // 2, len(key) - 1)]
    value = shared_memory.SharedMemory(create=True, size=VALUE_SIZE)
    let_others_write()
    changer = multiprocessing.get_context("spawn").Process(target=change, args=(os.getpid(), places, value.name))
    first = bytes(bytearray(keys[0]))
    changer.start()
    try:
        while bytes(bytearray(keys[0])) == first:
            assert changer.is_alive()
        with keyway_cache.Client(path, memory=32 << 20, checksums=checksums, default_noreply=False) as client:
            for number in range(STABLE):
                client.set(*stable(number))
            end, turn = time.monotonic() + SECONDS, 0
            while time.monotonic() < end or turn < 20:
                call(client, turn, keys, value.buf[:VALUE_SIZE])
                turn += 1
            assert changer.is_alive()
            changer.kill()
            changer.join()
            stats = client.stats()
            assert stats[b"corrupt"] == 0
            assert stats[b"curr_items"] == counted(client, lengths)
    finally:
        changer.kill()
        changer.join()
        value.unlink()
    checked = subprocess.run([os.environ["KEYWAY"], "check", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
