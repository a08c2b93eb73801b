from keyway_cache import serde as serde
from keyway_cache._keyway import Client as Client
from keyway_cache._keyway import __version__ as __version__
from keyway_cache.exceptions import MemcacheClientError as MemcacheClientError
from keyway_cache.exceptions import MemcacheError as MemcacheError
from keyway_cache.exceptions import MemcacheIllegalInputError as MemcacheIllegalInputError
from keyway_cache.exceptions import MemcacheInFlightError as MemcacheInFlightError
from keyway_cache.exceptions import MemcacheLimitError as MemcacheLimitError
from keyway_cache.exceptions import MemcacheRecursionError as MemcacheRecursionError
from keyway_cache.exceptions import MemcacheRegionError as MemcacheRegionError
from keyway_cache.exceptions import MemcacheServerError as MemcacheServerError
from keyway_cache.exceptions import MemcacheUnexpectedCloseError as MemcacheUnexpectedCloseError
from keyway_cache.exceptions import MemcacheUnknownCommandError as MemcacheUnknownCommandError
from keyway_cache.exceptions import MemcacheUnknownError as MemcacheUnknownError
from keyway_cache.exceptions import MemcacheWaitError as MemcacheWaitError
from keyway_cache.fetching import cached as cached

__all__ = [
    "Client",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheInFlightError",
    "MemcacheLimitError",
    "MemcacheRecursionError",
    "MemcacheRegionError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "MemcacheWaitError",
    "__version__",
    "cached",
    "serde",
]
