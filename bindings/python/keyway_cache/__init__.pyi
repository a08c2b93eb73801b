from keyway_cache import serde as serde
from keyway_cache._keyway import Client as Client
from keyway_cache._keyway import __version__ as __version__
from keyway_cache.exceptions import MemcacheClientError as MemcacheClientError
from keyway_cache.exceptions import MemcacheError as MemcacheError
from keyway_cache.exceptions import MemcacheIllegalInputError as MemcacheIllegalInputError
from keyway_cache.exceptions import MemcacheRegionError as MemcacheRegionError
from keyway_cache.exceptions import MemcacheServerError as MemcacheServerError
from keyway_cache.exceptions import MemcacheUnexpectedCloseError as MemcacheUnexpectedCloseError
from keyway_cache.exceptions import MemcacheUnknownCommandError as MemcacheUnknownCommandError
from keyway_cache.exceptions import MemcacheUnknownError as MemcacheUnknownError

__all__ = [
    "Client",
    "MemcacheClientError",
    "MemcacheError",
    "MemcacheIllegalInputError",
    "MemcacheRegionError",
    "MemcacheServerError",
    "MemcacheUnexpectedCloseError",
    "MemcacheUnknownCommandError",
    "MemcacheUnknownError",
    "__version__",
    "serde",
]
