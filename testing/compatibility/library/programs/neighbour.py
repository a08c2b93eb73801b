"""A program that shares a cache with others, in Python; neighbour.c is the same in C.

Usage: neighbour.py PLACE COMMAND …, PLACE being a region's path or a server's region socket; every command ends with one line.

swap OWN OTHER              sets OWN to itself, and waits until OTHER is found: "swapped OTHER's value"
fill PREFIX COUNT SIZE TTL  sets PREFIX0 and so on to values of SIZE bytes: "filled COUNT"
count PREFIX COUNT          how many of these are found: "counted N"
vanish KEY                  waits until KEY is not found: "vanished"
write KEY                   sets KEY to ever new values until it is killed; says "writing" when it is well at it
"""

import sys

import keyway_cache

MEMORY = 8 << 20

place, command, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
client = keyway_cache.Client(place, memory=MEMORY, default_noreply=False)


def swap(own, other):
    assert client.set(own, own) is True
    while (value := client.get(other)) is None:
        pass
    return f"swapped {value.decode()}"


def fill(prefix, count, size, ttl):
    value = b"v" * int(size)
    for number in range(int(count)):
        assert client.set(f"{prefix}{number}", value, int(ttl)) is True
    return f"filled {count}"


def count(prefix, count):
    return f"counted {len(client.get_many(f'{prefix}{number}' for number in range(int(count))))}"


def vanish(key):
    while client.get(key) is not None:
        pass
    return "vanished"


def write(key):
    turn = 0
    while True:
        turn += 1
        client.set(key, b"%d" % turn * (turn % 500))
        if turn == 100:
            print("writing", flush=True)


print(globals()[command](*arguments), flush=True)
