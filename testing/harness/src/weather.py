"""A network in bad weather: carries frames between two interfaces, and loses, repeats and delays some of them.

    weather.py SEED LOSS REPEAT DELAY    (shares of the frames, in percent)

The interfaces are `left` and `right` of this network namespace. Ends when standard input does.
"""

import heapq
import random
import select
import socket
import sys
import time

ETH_P_ALL = 3
DELAY_MAX_S = 0.02


def main():
    seed, loss, repeat, delay = (float(word) for word in sys.argv[1:])
    choose = random.Random(seed)
    ends = []
    for name in ("left", "right"):
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        end.bind((name, ETH_P_ALL))
        ends.append(end)
    waiting = []
    number = 0
    print("ready", flush=True)
    while True:
        timeout = max(0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([*ends, sys.stdin], [], [], timeout)
        if sys.stdin in ready:
            return
        for end in ready:
            frame, address = end.recvfrom(1 << 17)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            other = ends[1 - ends.index(end)]
            # Neighbours are found in any weather.
            is_tcp = frame[12:14] == b"\x08\x00" and frame[23] == 6 or frame[12:14] == b"\x86\xdd" and frame[20] == 6
            if not is_tcp:
                other.send(frame)
                continue
            if choose.random() * 100 < loss:
                continue
            for _ in range(2 if choose.random() * 100 < repeat else 1):
                wait = choose.random() * DELAY_MAX_S if choose.random() * 100 < delay else 0
                number += 1
                heapq.heappush(waiting, (time.monotonic() + wait, number, other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, other, frame = heapq.heappop(waiting)
            other.send(frame)


main()
