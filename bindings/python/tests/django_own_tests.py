"""Runs Django's own cache tests, those that it has for every backend of its kind, against keyway_cache.django.KeywayCache.

Usage: django_own_tests.py TESTS LOCATION [BACKEND]: TESTS is the folder `tests` of Django's source distribution, LOCATION the
path of a region. With a backend of Django's own, and a server's socket, the same tests run against that one.

Three of them look into the private attributes of Django's memcached backends, and are left out: what they are about is in
test_django.py. Its last line starts with OK.
"""

import sys
import unittest

TESTS, LOCATION = sys.argv[1:3]
BACKEND = sys.argv[3] if len(sys.argv) > 3 else "keyway_cache.django.KeywayCache"
sys.path.insert(0, TESTS)

import django
from django.conf import settings

BASE = {"BACKEND": BACKEND, "LOCATION": LOCATION}
if BACKEND == "keyway_cache.django.KeywayCache":
    BASE["OPTIONS"] = {"memory": 64 << 20}
MEMORY = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(
    CACHES={"default": BASE},
    DATABASES={"default": MEMORY, "other": MEMORY},
    DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    INSTALLED_APPS=["cache"],
    MIDDLEWARE=[],
    SECRET_KEY="none",
    USE_TZ=False,
)
django.setup()

from cache import tests
from django.test import TestCase, override_settings
from django.test.runner import DiscoverRunner

from keyway_cache import MemcacheClientError

LOOK_INSIDE = ["test_close", "test_location_multiple_servers", "test_set_many_returns_failing_keys"]


@override_settings(CACHES=tests.caches_setting_for_tests(base=BASE, exclude={"cull", "zero_cull"}))
class KeywayCacheTests(tests.BaseMemcachedTests, TestCase):
    base_params = BASE
    incr_decr_type_error = MemcacheClientError if BACKEND == "keyway_cache.django.KeywayCache" else Exception


for name in LOOK_INSIDE:
    setattr(KeywayCacheTests, name, None)

runner = DiscoverRunner(verbosity=1)
runner.setup_test_environment()
databases = runner.setup_databases()
result = runner.run_suite(unittest.defaultTestLoader.loadTestsFromTestCase(KeywayCacheTests))
runner.teardown_databases(databases)
if not result.wasSuccessful() or result.testsRun < 50:
    sys.exit(f"{len(result.failures)} failures, {len(result.errors)} errors in {result.testsRun} tests")
print(f"OK: {result.testsRun} of Django's tests, {len(result.skipped)} skipped, without {', '.join(LOOK_INSIDE)}")
