"""Conversion of values: objects with `serialize(key, value)`, which returns bytes (or text) and flags, and the inverse
`deserialize(key, value, flags)`.

The flags are those of python-memcached and pymemcache, so their clients on the network and Keyway's understand each other's
values.
"""

import logging
import pickle
import zlib

log = logging.getLogger(__name__)

FLAG_BYTES = 0
FLAG_PICKLE = 1
FLAG_INTEGER = 2
FLAG_LONG = 4
FLAG_COMPRESSED = 8
FLAG_TEXT = 16

DEFAULT_PICKLE_VERSION = pickle.HIGHEST_PROTOCOL


class PickleSerde:
    """Bytes as they are, text as UTF-8, integers as digits (so incr and decr work on them), and all other values pickled.

    This holds for exact types only: a value of a derived class is pickled, and is returned as that class. A value that cannot be
    unpickled (for example, because its class has moved) is returned as None, as in pymemcache, and is logged. A process that may
    write to the cache can make a program that unpickles from it run any code, as with every cache that holds pickles.
    """

    def __init__(self, pickle_version=DEFAULT_PICKLE_VERSION):
        self.pickle_version = pickle_version

    def serialize(self, key, value):
        kind = type(value)
        if kind is bytes:
            return value, FLAG_BYTES
        if kind is str:
            return value.encode("utf-8"), FLAG_TEXT
        if kind is int:
            return b"%d" % value, FLAG_INTEGER
        return pickle.dumps(value, self.pickle_version), FLAG_PICKLE

    def deserialize(self, key, value, flags):
        if flags & FLAG_TEXT:
            return value.decode("utf-8")
        if flags & (FLAG_INTEGER | FLAG_LONG):
            return int(value)
        if flags & FLAG_PICKLE:
            try:
                return pickle.loads(value)
            except Exception:
                log.info("the value of %r cannot be unpickled: it is returned as None", key, exc_info=True)
                return None
        return value


class CompressedSerde:
    """Another serde's bytes, compressed if they are longer than `min_compress_len` and compression makes them shorter."""

    def __init__(self, compress=zlib.compress, decompress=zlib.decompress, serde=None, min_compress_len=400):
        self.compress = compress
        self.decompress = decompress
        self.serde = pickle_serde if serde is None else serde
        self.min_compress_len = min_compress_len

    def serialize(self, key, value):
        data, flags = self.serde.serialize(key, value)
        if 0 < self.min_compress_len < len(data):
            smaller = self.compress(data)
            if len(smaller) <= len(data):
                return smaller, flags | FLAG_COMPRESSED
        return data, flags

    def deserialize(self, key, value, flags):
        if flags & FLAG_COMPRESSED:
            value = self.decompress(value)
        return self.serde.deserialize(key, value, flags & ~FLAG_COMPRESSED)


pickle_serde = PickleSerde()
compressed_serde = CompressedSerde()
