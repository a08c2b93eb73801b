"""A worker of the storm, in Python; worker.c is the same in C.

Usage: worker.py REGION JOURNAL WORKER WORKERS SEED [FAULT]

Each worker owns KEYS keys, which it alone sets and deletes, by numbered changes: every fifth change deletes, the others set a value
that the number determines. The journal, which all map, has for each key the last change that was attempted and the last one that
was acknowledged. So whoever reads a key knows between which two changes its value must lie, whatever became of the owner. Shared
keys are counted up by incr and by gets and cas; the journal has how often.

Prints what is wrong and exits 1, or 0 when the journal says stop. A FAULT is one that the others must find: torn, ahead, forgets.
"""

import mmap
import random
import sys

import keyway_cache

KEYS, COUNTERS, WORDS = 8, 4, 32
ATTEMPTED, ACKNOWLEDGED, INCR, CAS, CHECKS = 0, KEYS, 2 * KEYS, 2 * KEYS + 2, 2 * KEYS + 4

region, journal_path, me, workers, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
fault = sys.argv[6] if len(sys.argv) > 6 else None
with open(journal_path, "r+b") as file:
    journal = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
client = keyway_cache.Client(region, default_noreply=False)
chance = random.Random(seed)


def word(worker, field):
    return 1 + worker * WORDS + field


def value_of(worker, key, change):
    size = 70_000 if change % 64 == 0 else change * 7919 % 3000
    return b"%d:%d:%d:" % (worker, key, change) + bytes([97 + (worker * 7 + key * 3 + change) % 26]) * size


def wrong(what):
    print(f"worker {me}: {what}", flush=True)
    sys.exit(1)


def change_own():
    key = chance.randrange(KEYS)
    change = journal[word(me, ATTEMPTED + key)] + 1
    journal[word(me, ATTEMPTED + key)] = change
    name = f"own:{me}:{key}"
    if change % 5 == 0:
        client.delete(name)
    else:
        value = value_of(me, key, change)
        if fault == "torn":
            value = value[:-1] + b"!"
        if client.set(name, value) is not True:
            wrong(f"{name} was not set")
    if fault == "ahead":
        journal[word(me, ATTEMPTED + key)] = change = change + 1
    journal[word(me, ACKNOWLEDGED + key)] = change
    if fault == "forgets":
        client.delete(name)


def check_other():
    worker, key = chance.randrange(workers), chance.randrange(KEYS)
    least = journal[word(worker, ACKNOWLEDGED + key)]
    value = client.get(f"own:{worker}:{key}")
    most = journal[word(worker, ATTEMPTED + key)]
    if value is None:
        if least > 0 and not any(change % 5 == 0 for change in range(least, most + 1)):
            wrong(f"own:{worker}:{key} is lost: its change {least} was acknowledged, {most} attempted")
    else:
        change = int(value.split(b":", 3)[2])
        if change % 5 == 0 or not least <= change <= most:
            wrong(f"own:{worker}:{key} is of change {change}: {least} was acknowledged, {most} attempted")
        if value != value_of(worker, key, change):
            wrong(f"own:{worker}:{key} is torn: {value[:40]!r}")
    journal[word(me, CHECKS)] += 1


def count():
    journal[word(me, INCR)] += 1
    if client.incr(f"incr:{chance.randrange(COUNTERS)}", 1) is None:
        wrong("a counter is lost")
    journal[word(me, INCR + 1)] += 1


def count_by_cas():
    name = f"cas:{chance.randrange(COUNTERS)}"
    number, unique = client.gets(name)
    if number is None:
        wrong(f"{name} is lost")
    journal[word(me, CAS)] += 1
    if client.cas(name, b"%d" % (int(number) + 1), unique):
        journal[word(me, CAS + 1)] += 1
    else:
        journal[word(me, CAS)] -= 1


turn = 0
while journal[0] == 0:
    (change_own, check_other, check_other, count, count_by_cas)[turn % 5]()
    turn += 1
