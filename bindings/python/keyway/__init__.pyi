from keyway import serde as serde
from keyway._keyway import Client as Client
from keyway._keyway import __version__ as __version__
from keyway.exceptions import MemcacheClientError as MemcacheClientError
from keyway.exceptions import MemcacheError as MemcacheError
from keyway.exceptions import MemcacheIllegalInputError as MemcacheIllegalInputError
from keyway.exceptions import MemcacheRegionError as MemcacheRegionError
from keyway.exceptions import MemcacheServerError as MemcacheServerError
from keyway.exceptions import MemcacheUnexpectedCloseError as MemcacheUnexpectedCloseError
from keyway.exceptions import MemcacheUnknownCommandError as MemcacheUnknownCommandError
from keyway.exceptions import MemcacheUnknownError as MemcacheUnknownError

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
