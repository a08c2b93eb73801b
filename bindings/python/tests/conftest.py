"""What the tests are given: by the environment the sockets of a running server, by fixtures regions of their own.

KEYWAY: the program. KEYWAY_SERVER: the Unix socket on which `keyway serve` speaks memcached's protocol. KEYWAY_REGION_SOCKET: the one on
which it hands out its region. MEMCACHED_SERVER: a memcached's socket, where there is one.
"""

import os

import pytest

import keyway_cache


@pytest.fixture(scope="session")
def server():
    return os.environ["KEYWAY_SERVER"]


@pytest.fixture(scope="session")
def region_socket():
    return os.environ["KEYWAY_REGION_SOCKET"]


@pytest.fixture
def path(tmp_path_factory):
    """A region's path in memory, of this test alone."""
    name = f"/dev/shm/keyway-pytest-{os.getpid()}-{tmp_path_factory.mktemp('region').name}"
    yield name
    if os.path.exists(name):
        os.remove(name)


@pytest.fixture
def client(path):
    with keyway_cache.Client(path, memory=16 << 20, default_noreply=False) as client:
        yield client
