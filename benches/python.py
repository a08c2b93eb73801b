"""What a call costs in Python: keyway_cache.Client on a region, beside pymemcache and pylibmc to a memcached, in one run.

    python3 -m venv venv && venv/bin/pip install ./bindings/python pymemcache pylibmc django
    venv/bin/python benches/python.py

Client and memcached run on one CPU, which is memcached's best case for a single client. The sides take turns; each figure is the
median of all turns, in microseconds a call, with the lowest and the highest. Every side's answers are checked before it is timed.
KEYWAY_MEMCACHED names another memcached than the one on the path. What is not installed is left out, and named.
"""

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import keyway_cache

SMALL, LARGE, MANY = b"v" * 128, b"v" * 5120, 100
TWENTY = {f"twenty:{n:09d}": "v" * 100 for n in range(20)}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def start(command, is_up):
    process = subprocess.Popen(command)
    end = time.monotonic() + 20
    while not is_up():
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            sys.exit(f"{command[0]} does not come up")
        time.sleep(0.01)
    return process


def answers(family, address):
    try:
        with socket.socket(family) as probe:
            probe.connect(address)
            return True
    except OSError:
        return False


def asked_of(client, get_many, **now):
    """What is asked of a client; `now` makes it wait for an answer."""
    keys = [f"many:{n}" for n in range(MANY)]
    return {
        "get 128 B": lambda: client.get("small"),
        "get 5 KB": lambda: client.get("large"),
        "get of an absent key": lambda: client.get("absent"),
        "set 128 B": lambda: client.set("small", SMALL, **now),
        "set 5 KB": lambda: client.set("large", LARGE, **now),
        "incr": lambda: client.incr("count", 1),
        "delete of an absent key": lambda: client.delete("absent", **now),
        f"get_many of {MANY}, 128 B": lambda: get_many(keys),
    }


def fetched_of(client):
    """A fetch of what is there, as it is written: with its options, and a function that is not called."""

    def compute():
        sys.exit("what is there is computed")

    return {"fetch of 128 B that is there": lambda: client.fetch("small", compute, ttl=60)}


def django_side(place):
    """Django's backend, without its proxy."""
    from django.conf import settings

    settings.configure()
    from keyway_cache.django import KeywayCache

    cache = KeywayCache(place, {"OPTIONS": {"memory": 64 << 20}})
    cache.set_many(TWENTY)
    first = next(iter(TWENTY))
    return {
        "Django: get 100 B": lambda: cache.get(first),
        "Django: get_many of 20, 100 B": lambda: cache.get_many(TWENTY),
    }


def prepare(side, fill):
    """Stores what is asked for, and checks that each call answers what it must."""
    fill()
    expected = {
        "get 128 B": SMALL,
        "get 5 KB": LARGE,
        "fetch of 128 B that is there": SMALL,
        "get of an absent key": None,
        "set 128 B": True,
        "set 5 KB": True,
        "incr": 1,
        "delete of an absent key": False,
        f"get_many of {MANY}, 128 B": {f"many:{n}": SMALL for n in range(MANY)},
        "Django: get 100 B": "v" * 100,
        "Django: get_many of 20, 100 B": TWENTY,
    }
    for name, call in side.items():
        found = call()
        if found != expected[name]:
            sys.exit(f"{name} answers {found!r:.80}, not {expected[name]!r:.80}")


def time_of(call, seconds):
    """Seconds a call."""
    clock, turns, begun = time.perf_counter, 0, time.perf_counter()
    batch = 1
    while (spent := clock() - begun) < seconds:
        for _ in range(batch):
            call()
        turns += batch
        batch = min(batch * 2, 1024) if spent < seconds / 10 else batch
    return spent / turns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.1, help="for each call and turn")
    parser.add_argument("--repeats", type=int, default=7, help="turns")
    parser.add_argument("--cpu", type=int, help="the CPU for all; the first that may be used")
    options = parser.parse_args()
    cpu = min(os.sched_getaffinity(0)) if options.cpu is None else options.cpu
    os.sched_setaffinity(0, {cpu})
    memcached = os.environ.get("KEYWAY_MEMCACHED") or shutil.which("memcached")
    sides, left_out, processes = {}, [], []

    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        place = os.path.join(folder, "region")
        client = keyway_cache.Client(place, memory=64 << 20)
        sides["keyway"] = asked_of(client, client.get_many, noreply=False) | fetched_of(client)
        try:
            sides["keyway"] |= django_side(place)
        except ImportError:
            left_out.append("Django is not installed")

        items = {"small": SMALL, "large": LARGE, **{f"many:{n}": SMALL for n in range(MANY)}}
        prepare(sides["keyway"], lambda: client.set_many({**items, "count": "0"}, noreply=False))
        if memcached is None:
            left_out.append("memcached is not installed")
        else:
            path, port = os.path.join(folder, "socket"), free_port()
            common = [memcached, "-u", "root", "-m", "64", "-t", "1"]
            processes.append(start([*common, "-s", path], lambda: answers(socket.AF_UNIX, path)))
            processes.append(start([*common, "-l", "127.0.0.1", "-p", str(port)], lambda: answers(socket.AF_INET, ("127.0.0.1", port))))
            try:
                from pymemcache.client.base import Client

                for name, server in [("Unix", path), ("TCP", ("127.0.0.1", port))]:
                    client = Client(server, no_delay=True)
                    sides[f"pymemcache, {name}"] = asked_of(client, client.get_many, noreply=False)
                    prepare(sides[f"pymemcache, {name}"], lambda: client.set_many({**items, "count": "0"}, noreply=False))
            except ImportError:
                left_out.append("pymemcache is not installed")
            try:
                import pylibmc

                for name, server in [("Unix", path), ("TCP", f"127.0.0.1:{port}")]:
                    client = pylibmc.Client([server], behaviors={"tcp_nodelay": True})
                    sides[f"pylibmc, {name}"] = asked_of(client, client.get_multi)
                    prepare(sides[f"pylibmc, {name}"], lambda: client.set_multi({**items, "count": 0}))
            except ImportError:
                left_out.append("pylibmc is not installed")

        figures = {(call, side): [] for side in sides for call in sides[side]}
        for _ in range(options.repeats):
            for side, calls in sides.items():
                for name, call in calls.items():
                    figures[name, side].append(time_of(call, options.seconds) * 1e6)
        for process in processes:
            process.terminate()
            process.wait()

    print(f"| µs a call, CPU {cpu} | " + " | ".join(sides) + " |")
    print("|---|" + "---|" * len(sides))
    for name in sides["keyway"]:
        of_sides = [figures.get((name, side)) for side in sides]
        cells = [f"{statistics.median(all_of):.3f} ({min(all_of):.3f}–{max(all_of):.3f})" if all_of else "–" for all_of in of_sides]
        print(f"| {name} | " + " | ".join(cells) + " |")
    for because in left_out:
        print(f"left out: {because}")


if __name__ == "__main__":
    main()
