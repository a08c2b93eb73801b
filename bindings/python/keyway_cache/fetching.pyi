from collections.abc import Callable
from typing import Any, TypeVar

from keyway_cache._keyway import Client

_F = TypeVar("_F", bound=Callable[..., Any])

def cached(
    client: Client,
    key: str | Callable[..., str | bytes] | None = None,
    *,
    ttl: int = 0,
    negative_ttl: int = 0,
    stale_while_revalidate: int = 0,
    stale_if_error: int = 0,
    early: float = 0.0,
    wait: float = 10.0,
    compute_after_wait: bool = True,
    limit: tuple[str | bytes, int] | None = None,
) -> Callable[[_F], _F]: ...
