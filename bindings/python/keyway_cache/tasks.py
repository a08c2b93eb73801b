"""Fetches for tasks of asyncio's, which never block their event loop. A task looks whether the value is there or somebody computes it, which
takes microseconds, and waits in one of these ways:

- for another task of its loop, on a future that this one sets;
- for another thread or process, in one of a few threads that do nothing else: they are the package's own, because tasks may need the loop's
  executor to compute. One task of a loop waits so for a key; more than there are threads for look now and then;
- for a place under a limit, one task of a loop looks now and then, and the others are in a queue behind it.
"""

import asyncio
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from keyway_cache.exceptions import MemcacheError, MemcacheLimitError, MemcacheRecursionError

# Threads that wait. Each takes one of the region's slots for threads.
WAITERS = 4
# How long a thread waits before its task looks by itself, seconds: the interpreter waits as long for the thread when it ends.
WAIT_S = 0.1
# How often a task looks that has neither a thread nor another task to wake it, seconds.
LOOK_S = 0.005
# By loop, place and key: set when the task that computes the key, or waits for it in a thread, has ended.
_busy = {}
# By loop, place and prefix: the queues of limits.
_queues = {}
# What of _busy the current task computes, or one that waits for it.
_computing = contextvars.ContextVar("keyway_computing", default=())
_waiters = None


class _Waiters:
    """The threads that wait."""

    def __init__(self):
        self.pool = ThreadPoolExecutor(WAITERS, thread_name_prefix="keyway-wait")
        self.free = threading.BoundedSemaphore(WAITERS)

    def wait(self, client, key, seconds):
        """A future that is set when the key is free, or the time is over; None: no thread is free."""
        if not self.free.acquire(blocking=False):
            return None
        try:
            future = self.pool.submit(client._fetch_wait, key, seconds)
        except RuntimeError:  # the interpreter ends
            self.free.release()
            return None
        future.add_done_callback(lambda _: self.free.release())
        return future


def _forget():
    """In a forked child: its parent's threads and loops are not there."""
    global _waiters
    _waiters = None
    _busy.clear()
    _queues.clear()


os.register_at_fork(after_in_child=_forget)


async def fetch_in_task(client, key, compute, how):
    """See Client.fetch_async."""
    loop = asyncio.get_running_loop()
    place = id(client) if client.server == "memfd" else client.server
    name = (loop, place, client.key_prefix, key)
    limit = (loop, place, how.limit)
    end = loop.time() + how.wait
    is_over = how.wait <= 0
    has_ended, found = client._fetch_begin(key, how, is_over, False)
    while not has_ended:
        if not isinstance(found, MemcacheError):
            return await _compute(name, limit, found, compute)
        if is_over:
            raise found
        other = _busy.get(name)
        if isinstance(found, MemcacheLimitError):
            answer = await _in_turn(limit, client, key, how, end)
            if answer is not None:
                has_ended, found = answer
                continue
        elif other is None:
            await _elsewhere(name, client, key, end)
        elif other in _computing.get():
            if how.nests:
                return await compute()
            raise MemcacheRecursionError(f"this task is computing the value of {key!r} already: it would wait for itself")
        else:
            await asyncio.wait([other], timeout=max(0, end - loop.time()))
        is_over = loop.time() >= end
        has_ended, found = client._fetch_begin(key, how, is_over, True)
    return found


async def _compute(name, limit, flight, compute):
    """Computes, and ends the flight: a task that is cancelled lets others compute."""
    own = None
    if name not in _busy:
        own = _busy[name] = name[0].create_future()
        _computing.set((*(outer for outer in _computing.get() if not outer.done()), own))
    try:
        try:
            value = await compute()
        except Exception as error:
            old = flight.fail(error)
            if old is None:
                raise
            return old[0]
        return flight.finish(value)
    finally:
        flight.abandon()
        if own is not None:
            _busy.pop(name, None)
            own.set_result(None)
        if limit in _queues:
            _queues[limit].wake()


async def _elsewhere(name, client, key, end):
    """Waits for another thread or process."""
    global _waiters
    loop = name[0]
    own = _busy[name] = loop.create_future()
    try:
        if _waiters is None:
            _waiters = _Waiters()
        left = max(0, end - loop.time())
        waited = _waiters.wait(client, key, min(left, WAIT_S))
        if waited is not None:
            try:
                return await asyncio.wrap_future(waited)
            except MemcacheError:
                # The thread can have no session.
                pass
        await asyncio.sleep(min(left, LOOK_S))
    finally:
        _busy.pop(name, None)
        own.set_result(None)


class _Queue:
    """The tasks of a loop that wait for a place under a limit. The first looks."""

    def __init__(self):
        self.turn = asyncio.Lock()
        self.tasks = 0
        self.ended = None

    async def rest(self, seconds):
        """Until a task of this loop has left its place, or so long."""
        self.ended = asyncio.get_running_loop().create_future()
        await asyncio.wait([self.ended], timeout=seconds)

    def wake(self):
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


async def _in_turn(limit, client, key, how, end):
    """What the beginning of the fetch answers as soon as the limit is not full; None: the time is over."""
    loop = limit[0]
    queue = _queues.setdefault(limit, _Queue())
    queue.tasks += 1
    try:
        await asyncio.wait_for(queue.turn.acquire(), max(0, end - loop.time()))
        try:
            while (left := end - loop.time()) > 0:
                has_ended, found = client._fetch_begin(key, how, False, True)
                if has_ended or not isinstance(found, MemcacheLimitError):
                    return has_ended, found
                await queue.rest(min(left, LOOK_S))
        finally:
            queue.turn.release()
    except asyncio.TimeoutError:
        pass
    finally:
        queue.tasks -= 1
        if queue.tasks == 0:
            _queues.pop(limit, None)
    return None
