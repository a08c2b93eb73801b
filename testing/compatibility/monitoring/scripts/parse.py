"""Reads a page of metrics in both formats with Prometheus's own parsers, which refuse what their specifications forbid, and compares the two.

Usage: parse.py OPENMETRICS_FILE TEXT_FILE
"""

import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

# Values that are read at different times.
MOVING = ("_seconds", "_seconds_total", "keyway_http_requests_total")


def samples(families):
    found = {}
    for family in families:
        assert family.type in ("counter", "gauge", "histogram"), (family.name, family.type)
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = (family.type, sample.value)
    return found


with open(sys.argv[1]) as file:
    text = file.read()
    assert text.endswith("\n# EOF\n")
    families = list(parse_openmetrics(text))
with open(sys.argv[2]) as file:
    old = samples(parse_text(file.read()))

for family in families:
    for unit in ("seconds", "bytes"):
        assert (family.unit == unit) == family.name.endswith("_" + unit), (family.name, family.unit)
new = samples(families)
assert new.keys() == old.keys(), new.keys() ^ old.keys()
for (name, labels), (kind, value) in new.items():
    # The older parser leaves _total out of a counter's family name as well, so the types are comparable.
    assert old[name, labels][0] == kind, name
    assert (kind == "counter") == name.endswith("_total"), name
    assert value >= 0, name
    if not name.endswith(MOVING):
        assert old[name, labels][1] == value, (name, labels, value, old[name, labels])
print(f"OK: {len(families)} metrics, {len(new)} numbers")
