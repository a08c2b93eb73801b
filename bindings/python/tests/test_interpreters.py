"""The package in several interpreters of one process, as mod_wsgi has them: each catches the exceptions under the classes of its own modules,
whichever of them was first, and after others have ended.

Guards: P30
"""

import os
import subprocess
import sys
import textwrap

import pytest

# What each interpreter does: every class of the module's own exceptions, and one of Python's.
USE = """
import sys
sys.path[:] = {path!r}
import keyway_cache
from keyway_cache import exceptions

client = keyway_cache.Client({region!r}, memory=8 << 20, default_noreply=False)
client.set("text", "abc")
cases = {{
    "MemcacheIllegalInputError": lambda: client.get("k" * 300),
    "MemcacheClientError": lambda: client.incr("text", 1),
    "MemcacheServerError": lambda: client.set("large", b"v" * (2 << 20)),
    "MemcacheRegionError": lambda: keyway_cache.Client("/dev/null/none").get("k"),
}}
for name, case in cases.items():
    try:
        case()
    except exceptions.MemcacheError as error:
        assert type(error) is getattr(exceptions, name), (name, type(error))
        assert str(error), name
    else:
        raise AssertionError(name + " is not raised")
try:
    client.get(7)
except TypeError:
    pass
assert client.get("text") == b"abc"
client.close()
"""

# Interpreters that share the lock, as mod_wsgi's do, by the names that Python's versions have for them.
INTERPRETERS = """
try:
    import _interpreters
    create = lambda: _interpreters.create("legacy")
    def run(number, code):
        failed = _interpreters.exec(number, code)
        assert failed is None, failed
    destroy = _interpreters.destroy
except ImportError:
    import _xxsubinterpreters
    import sys
    create = lambda: _xxsubinterpreters.create(**({"isolated": False} if sys.version_info >= (3, 9) else {}))
    run = _xxsubinterpreters.run_string
    destroy = _xxsubinterpreters.destroy
"""

ORDERS = {
    "the first interpreter first": "exec(use)\na = create()\nrun(a, use)\nexec(use)",
    "another one first": "a, b = create(), create()\nrun(a, use)\nrun(b, use)\nexec(use)\nrun(a, use)",
    "after others have ended": "for _ in range(5):\n    a = create()\n    run(a, use)\n    destroy(a)\nexec(use)\nb = create()\nrun(b, use)",
}


@pytest.mark.parametrize("order", ORDERS)
def test_each_interpreter_catches_its_exceptions(order, path):
    use = USE.format(path=sys.path, region=path)
    code = f"{INTERPRETERS}\nuse = {use!r}\n{textwrap.dedent(ORDERS[order])}\nprint('all caught')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, timeout=120)
    assert done.stdout == "all caught\n", done.stderr
