"""Does what its input says with the client of docs/fleet.md, a line at a time."""
import sys

@CLIENT@

for line in sys.stdin:
    verb, key, *value = line.split()
    try:
        if verb == "set":
            answer = "OK" if client.set(key, value[0], noreply=False) else "ERROR not stored"
        else:
            found = client.get(key)
            answer = "MISS" if found is None else found.decode()
    except Exception as error:
        answer = f"ERROR {error!r}"
    print(answer, flush=True)
