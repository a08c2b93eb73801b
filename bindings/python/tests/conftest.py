"""What the tests are given: by the environment the sockets of a running server, by fixtures regions of their own.

KEYWAY: the program. KEYWAY_TEST_ARGUMENT: the Unix socket on which `keyway serve` speaks memcached's protocol. KEYWAY_TEST_PLACE: the one on
which it hands out its region. MEMCACHED_SERVER: a memcached's socket, where there is one.
"""

import os

import pytest

import keyway_cache


@pytest.fixture(scope="session")
def server():
    return os.environ["KEYWAY_TEST_ARGUMENT"]


@pytest.fixture(scope="session")
def region_socket():
    return os.environ["KEYWAY_TEST_PLACE"]


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
