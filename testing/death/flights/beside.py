"""What a hand-over after SIGKILL costs elsewhere: dogpile.cache with Redis, and memcached's `mg` with `N`, polled.

    apt-get install redis-server memcached
    pip install dogpile.cache redis
    python3 testing/death/flights/beside.py

In each round one process computes and is killed, while another one waits for its value. Printed: the time from the kill until the other
one computes. Both servers listen on sockets in a folder of this program's own.
"""

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 5
# Seconds after which a lock, or the right to recache, is free again.
TIMEOUT = 5
# Seconds between two looks of a client that polls memcached.
POLL = 0.01


def dogpile_waits(place, key):
    """Computes a value by dogpile.cache, and says when that begins."""
    from dogpile.cache import make_region

    arguments = {
        "url": f"unix://{place}/redis.sock",
        "distributed_lock": True,
        "thread_local_lock": False,
        "lock_timeout": TIMEOUT,
        "redis_expiration_time": 60,
    }
    region = make_region().configure("dogpile.cache.redis", expiration_time=50, arguments=arguments)
    region.get_or_create(key, computes)


def memcached_waits(place, key):
    """Asks memcached until this client has won."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{place}/memcached.sock")
    answers = connection.makefile("rb")
    while True:
        connection.sendall(f"mg {key} s v N{TIMEOUT}\r\n".encode())
        line = answers.readline()
        answers.readline()
        if b" W" in line:
            return computes()
        time.sleep(POLL)


def computes():
    print(time.monotonic(), flush=True)
    time.sleep(60)


WAYS = {"dogpile.cache with Redis": dogpile_waits, "memcached, polled": memcached_waits}


def start(way, place, key):
    return subprocess.Popen([sys.executable, __file__, way, place, key], stdout=subprocess.PIPE, text=True)


def hand_over(way, place, key):
    """Seconds from the death of the one that computes until the other one does."""
    one = start(way, place, key)
    one.stdout.readline()
    other = start(way, place, key)
    time.sleep(1)
    killed = time.monotonic()
    one.send_signal(signal.SIGKILL)
    taken_over = float(other.stdout.readline())
    other.kill()
    for process in (one, other):
        process.wait()
    return taken_over - killed


def main():
    with tempfile.TemporaryDirectory() as place:
        redis = ["redis-server", "--port", "0", "--unixsocket", f"{place}/redis.sock", "--save", "", "--dir", place]
        memcached = ["memcached", "-s", f"{place}/memcached.sock", "-u", "root"]
        servers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in (redis, memcached)]
        try:
            while not all(os.path.exists(f"{place}/{name}.sock") for name in ("redis", "memcached")):
                time.sleep(0.05)
            for way in WAYS:
                times = [hand_over(way, place, f"key-{number}") for number in range(ROUNDS)]
                print(f"{way}: median {statistics.median(times):.2f} s of {ROUNDS}, with a time-out of {TIMEOUT} s")
        finally:
            for server in servers:
                server.kill()
                server.wait()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        WAYS[sys.argv[1]](sys.argv[2], sys.argv[3])
    else:
        main()
