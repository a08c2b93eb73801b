"""What a client raises, under pymemcache's names."""


class MemcacheError(Exception):
    """Base of them all."""


class MemcacheClientError(MemcacheError):
    """The request is wrong: a number that is none, a value that cannot be counted."""


class MemcacheUnknownCommandError(MemcacheClientError):
    """Never raised here: for `except` clauses written for pymemcache."""


class MemcacheIllegalInputError(MemcacheClientError):
    """A key or value that no cache takes. Nothing was tried."""


class MemcacheServerError(MemcacheError):
    """The cache could not do it: the value is too large, there is no memory, or the region is damaged."""


class MemcacheUnknownError(MemcacheError):
    """Never raised here: for `except` clauses written for pymemcache."""


class MemcacheUnexpectedCloseError(MemcacheServerError):
    """Never raised here: for `except` clauses written for pymemcache."""


class MemcacheRegionError(MemcacheServerError, OSError):
    """There is no region to use: it is absent, not handed out to this process, of another version, or full of other processes
    or threads. pymemcache raises an OSError where it finds no server, so this is one too."""
