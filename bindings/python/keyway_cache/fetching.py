"""Fetches as a decorator.

    @cached(client, key="user:{number}", ttl=300, stale_while_revalidate=60)
    def user(number): ...
"""

import functools
import hashlib
import inspect
import re

__all__ = ["cached"]

# Most characters of a key that is made of a function's name and arguments. A client's key_prefix comes before it; 250 are allowed.
NAME_LEN_MAX = 180


def cached(client, key=None, **options):
    """Has a function's values fetched from a cache: `client.fetch(key, function, **options)`, and for a coroutine function
    `await client.fetch_async(...)`. A function that returns None says that there is no value.

    key: a format string over the function's arguments, such as "user:{number}", or a function of the same arguments that returns the key.
    Without one the key is the function's module and qualified name, and repr() of its arguments, or a hash of all that if it is too long
    or no key; an argument without a repr of its own is a TypeError, and a set has the same repr in all processes only with the same
    PYTHONHASHSEED. options: those of Client.fetch.

    The decorated function's `cache_key(...)` returns the key for these arguments: `client.delete(user.cache_key(7))`.
    """

    def decorate(function):
        key_of = key if callable(key) else _formatted(function, key)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def fetched(*args, **kwargs):
                return await client.fetch_async(key_of(*args, **kwargs), functools.partial(function, *args, **kwargs), **options)

        else:

            @functools.wraps(function)
            def fetched(*args, **kwargs):
                return client.fetch(key_of(*args, **kwargs), functools.partial(function, *args, **kwargs), **options)

        fetched.cache_key = key_of
        return fetched

    return decorate


def _formatted(function, key):
    """The function that makes the keys from the arguments of this one."""
    signature = inspect.signature(function)
    prefix = f"{function.__module__}.{function.__qualname__}"

    def cache_key(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if key is not None:
            return key.format(**bound.arguments)
        return _named(prefix, repr(tuple(bound.arguments.values())))

    return cache_key


def _named(prefix, arguments):
    if re.search(r" at 0x[0-9a-f]+>", arguments):
        raise TypeError(f"{prefix}: an argument has no repr of its own, so that it has another one in each process: say how the key is made")
    name = f"{prefix}:{arguments}".replace(", ", ",")
    if len(name) > NAME_LEN_MAX or not name.isascii() or not name.isprintable() or " " in name:
        return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()
    return name
