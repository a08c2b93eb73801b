"""The exceptions of a client, with pymemcache's names."""


class MemcacheError(Exception):
    """Base class of all exceptions."""


class MemcacheClientError(MemcacheError):
    """The request is wrong: an argument is not a number, or incr and decr found a value that is not a number."""


class MemcacheUnknownCommandError(MemcacheClientError):
    """Never raised by Keyway: it exists for `except` clauses that were written for pymemcache."""


class MemcacheIllegalInputError(MemcacheClientError):
    """A key or value that a cache does not accept. The operation was not tried."""


class MemcacheServerError(MemcacheError):
    """The operation failed: the value is too large, there is no memory, or the region is damaged."""


class MemcacheUnknownError(MemcacheError):
    """Never raised by Keyway: it exists for `except` clauses that were written for pymemcache."""


class MemcacheUnexpectedCloseError(MemcacheServerError):
    """Never raised by Keyway: it exists for `except` clauses that were written for pymemcache."""


class MemcacheRegionError(MemcacheServerError, OSError):
    """No region can be used: it is absent, not handed out to this process, of another version, or all its slots for processes or
    threads are taken. pymemcache raises an OSError if it finds no server, so this is an OSError too."""


class MemcacheWaitError(MemcacheError, TimeoutError):
    """A fetch has waited as long as it may, and has no value. Base class of the two that say for what."""


class MemcacheInFlightError(MemcacheWaitError):
    """Another caller computes the value, and compute_after_wait is False."""


class MemcacheLimitError(MemcacheWaitError):
    """As many callers compute as the limit allows."""


class MemcacheRecursionError(MemcacheClientError):
    """A fetch of a key within its own computation: it would wait for itself."""
