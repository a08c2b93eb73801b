"""A Django page of 12 cache calls, each of which checks its answer: "OK <number of this page>", or what was wrong, with status 500."""

import os

import django
from django.conf import settings
from django.core.cache import cache
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    CACHES={"default": {"BACKEND": os.environ["CACHE_BACKEND"], "LOCATION": os.environ["CACHE_LOCATION"]}},
)


class Wrong(Exception):
    """An answer that cannot be."""


def check(right, what):
    if not right:
        raise Wrong(what)


def value(key):
    """A value that says which key it belongs to."""
    return f"{key}|" + "x" * 128


def calls(user):
    # 1, 2: a number that no two pages get
    cache.add("pages", 0, None)
    page = cache.incr("pages")
    check(page > 0, "incr pages")
    # 3, 4: what the page shows, made when it is not there
    shown = cache.get(f"user:{user}")
    check(shown in (None, value(f"user:{user}")), f"user {user} is not its own")
    cache.set(f"user:{user}", value(f"user:{user}"), 3600)
    # 5: five at once
    users = cache.get_many([f"user:{number}" for number in range(user, user + 5)])
    check(f"user:{user}" in users, "get_many")
    check(all(text == value(name) for name, text in users.items()), "another's value")
    # 6, 7, 8: a lock that only this page has
    check(cache.add(f"lock:{page}", page, 60), "add lock")
    check(not cache.add(f"lock:{page}", 0, 60), "a lock that is held is taken")
    check(cache.delete(f"lock:{page}"), "delete lock")
    # 9, 10: what only this worker writes
    own = f"worker:{os.getpid()}"
    cache.set(own, page, None)
    check(cache.get(own) == page, "get worker")
    # 11, 12: the lock is gone, and a longer life
    check(cache.get(f"lock:{page}") is None, "a deleted lock is there")
    check(cache.touch(f"user:{user}", 7200), "touch")
    return page


def show(request):
    try:
        text, status = f"OK {calls(int(request.GET.get('user', 0)))}", 200
    except Exception as wrong:
        text, status = f"WRONG {wrong!r}", 500
    headers = {"Content-Type": "text/plain", "Content-Length": str(len(text))}
    return HttpResponse(text, headers=headers, status=status)


urlpatterns = [path("", show)]
django.setup()
# Used before the workers are forked, as a program does that loads its settings from the cache.
cache.get("settings")
if "memcached" in os.environ["CACHE_BACKEND"]:
    # Workers must not share a connection. Keyway's client can be used by parent and children.
    cache.close()
application = WSGIHandler()
