"""Django's cache backend on a region.

    CACHES = {
        "default": {
            "BACKEND": "keyway_cache.django.KeywayCache",
            "LOCATION": "/dev/shm/keyway.region",
            "OPTIONS": {"memory": 256 << 20},
        }
    }

LOCATION is a region's path or a server's region socket, OPTIONS are arguments of `keyway_cache.Client`. Keys are checked, and timeouts
have the same meaning, as in Django's memcached backends. incr and decr are atomic, work on values that were stored as a
non-negative int, and stop at 0. If a value is too large, it is not stored and the old value is deleted: set reports nothing,
set_many returns the key, add raises. get_or_set calls its default in one caller of all processes, while the others wait for its value
(`Client.fetch`); what it stores is void if the key is deleted meanwhile. aget_or_set does so without blocking the event loop, and awaits
what the default returns if that is awaitable. The other methods that begin with `a` are Django's own, which call the others in a thread.

Keys are made and checked in the extension module. Where it finds one that Django would refuse, or a class or a setting that makes
keys in its own way, Django's own functions make and check the keys, and raise or warn.
"""

import inspect
import time

from django.core.cache.backends.base import (
    DEFAULT_TIMEOUT,
    BaseCache,
    InvalidCacheKey,
    default_key_func,
    memcache_key_warnings,
)
from django.core.exceptions import ImproperlyConfigured
from django.utils.functional import cached_property

from keyway_cache import Client, MemcacheRegionError, MemcacheServerError
from keyway_cache.serde import pickle_serde
from keyway_cache.tasks import fetch_in_task

# Above this number of seconds memcached takes an exptime for a Unix time (protocol.txt, "Expiration times").
RELATIVE_MAX_S = 60 * 60 * 24 * 30


class KeywayCache(BaseCache):
    """A cache whose items are in a region, shared with every other process that uses it."""

    def __init__(self, location, params):
        super().__init__(params)
        if not isinstance(location, str) or not location:
            raise ImproperlyConfigured(
                f"LOCATION is {location!r}: give the path of a region, or of a server's region socket; hosts and ports are for "
                "django.core.cache.backends.memcached"
            )
        try:
            Client(location)
        except ValueError as refused:
            raise ImproperlyConfigured(f"LOCATION: {refused} (django.core.cache.backends.memcached)") from None
        self._location = location
        self._options = {"serde": pickle_serde, **(params.get("OPTIONS") or {})}
        # Arguments of Django for other backends, not for the client.
        for name in ("MAX_ENTRIES", "CULL_FREQUENCY"):
            self._options.pop(name, None)
        self._options.update(allow_unicode_keys=True, default_noreply=False)
        kind = type(self)
        self._checks_by_itself = kind.validate_key is KeywayCache.validate_key
        makes_by_itself = kind.make_key is BaseCache.make_key and kind.make_and_validate_key is KeywayCache.make_and_validate_key
        self._has_plain_keys = self._checks_by_itself and makes_by_itself

    @cached_property
    def _client(self):
        return Client(self._location, **self._options)

    def get_backend_timeout(self, timeout=DEFAULT_TIMEOUT):
        """memcached's exptime for a timeout: 0 means never, a negative number at once."""
        if timeout is DEFAULT_TIMEOUT:
            timeout = self.default_timeout
        if timeout is None:
            return 0
        seconds = int(timeout)
        if seconds == 0:
            return -1
        return seconds + int(time.time()) if seconds > RELATIVE_MAX_S else seconds

    def validate_key(self, key):
        """Raises for a key that memcached's text protocol does not allow."""
        for warning in memcache_key_warnings(key):
            raise InvalidCacheKey(warning)

    def make_and_validate_key(self, key, version=None):
        key = self.make_key(key, version=version)
        if not (self._checks_by_itself and Client._allows(key)):
            self.validate_key(key)
        return key

    def add(self, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        key = self.make_and_validate_key(key, version=version)
        return self._client.add(key, value, self.get_backend_timeout(timeout))

    def get(self, key, default=None, version=None):
        if self._has_plain_keys and self.key_func is default_key_func:
            prefix = "%s:%s:" % (self.key_prefix, self.version if version is None else version)
            value = self._client._get_made(prefix, key, default)
            if value is not NotImplemented:
                return value
        key = self.make_and_validate_key(key, version=version)
        return self._client.get(key, default)

    def get_or_set(self, key, default, timeout=DEFAULT_TIMEOUT, version=None):
        value = self.get(key, self._missing_key, version=version)
        if value is not self._missing_key:
            return value
        exptime = self.get_backend_timeout(timeout)
        if callable(default) and exptime >= 0:
            own = self.make_and_validate_key(key, version=version)
            return self._client._fetch_absent(own, default, Client._how_of_django(exptime))
        # Nothing to compute, or nothing that others could get.
        value = default() if callable(default) else default
        self.add(key, value, timeout=timeout, version=version)
        return self.get(key, value, version=version)

    async def aget_or_set(self, key, default, timeout=DEFAULT_TIMEOUT, version=None):
        async def compute():
            value = default() if callable(default) else default
            return await value if inspect.isawaitable(value) else value

        exptime = self.get_backend_timeout(timeout)
        own = self.make_and_validate_key(key, version=version)
        if callable(default) and exptime >= 0:
            return await fetch_in_task(self._client, own, compute, Client._how_of_django(exptime))
        value = await self.aget(key, self._missing_key, version=version)
        if value is self._missing_key:
            value = await compute()
            await self.aadd(key, value, timeout=timeout, version=version)
            value = await self.aget(key, value, version=version)
        return value

    def set(self, key, value, timeout=DEFAULT_TIMEOUT, version=None):
        key = self.make_and_validate_key(key, version=version)
        self._store(key, value, self.get_backend_timeout(timeout))

    def _store(self, key, value, exptime):
        """Whether the value was stored. A region that cannot be opened raises."""
        try:
            return self._client.set(key, value, exptime)
        except MemcacheRegionError:
            raise
        except MemcacheServerError:
            return False

    def touch(self, key, timeout=DEFAULT_TIMEOUT, version=None):
        key = self.make_and_validate_key(key, version=version)
        return self._client.touch(key, self.get_backend_timeout(timeout))

    def delete(self, key, version=None):
        key = self.make_and_validate_key(key, version=version)
        return self._client.delete(key)

    def get_many(self, keys, version=None):
        keys = list(keys)
        if self._has_plain_keys and self.key_func is default_key_func:
            prefix = "%s:%s:" % (self.key_prefix, self.version if version is None else version)
            values = self._client._get_many_made(prefix, keys)
            if values is not NotImplemented:
                return values
        names = {self.make_and_validate_key(key, version=version): key for key in keys}
        return {names[key]: value for key, value in self._client.get_many(names).items()}

    def set_many(self, data, timeout=DEFAULT_TIMEOUT, version=None):
        values = {self.make_and_validate_key(key, version=version): (key, value) for key, value in data.items()}
        exptime = self.get_backend_timeout(timeout)
        return [name for key, (name, value) in values.items() if not self._store(key, value, exptime)]

    def delete_many(self, keys, version=None):
        self._client.delete_many([self.make_and_validate_key(key, version=version) for key in keys])

    def incr(self, key, delta=1, version=None):
        own = self.make_and_validate_key(key, version=version)
        number = self._client.decr(own, -delta) if delta < 0 else self._client.incr(own, delta)
        if number is None:
            raise ValueError(f"Key '{own}' not found")
        return number

    def clear(self):
        self._client.flush_all()
