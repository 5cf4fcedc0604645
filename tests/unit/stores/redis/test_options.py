"""What the URL of a Redis store may say."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from evenflow.errors import Misconfigured
from evenflow.stores.redis.options import options_from_url
from evenflow.stores.redis.store import RedisStore
from evenflow.urls import open_store

SECRET = "open%20sesame%40home"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", {"host": "localhost", "port": 6379, "db": 0, "username": None, "password": None, "tls": False}),
        ("redis://cache.example", {"host": "cache.example", "port": 6379}),
        ("redis://cache.example:7000/3", {"host": "cache.example", "port": 7000, "db": 3}),
        ("redis://[::1]:7000", {"host": "::1", "port": 7000}),
        ("rediss://cache.example", {"tls": True}),
        ("valkey://cache.example", {"tls": False}),
        ("valkeys://cache.example?ca=/etc/ours.pem", {"tls": True, "ca": "/etc/ours.pem"}),
        (f"redis://anna:{SECRET}@h", {"username": "anna", "password": "open sesame@home"}),
        (f"redis://:{SECRET}@h", {"username": None, "password": "open sesame@home"}),
        ("redis+unix:///run/redis.sock", {"path": "/run/redis.sock"}),
        (f"redis+unix://anna:{SECRET}@/run/redis.sock", {"path": "/run/redis.sock", "username": "anna"}),
        ("redis://h?prefix=mine&timeout_s=0.5", {"prefix": "mine", "timeout_s": 0.5}),
        ("redis://h?cluster=yes", {"cluster": True}),
        ("redis://h?eviction=accept", {"accepts_eviction": True}),
    ],
)
def test_what_a_url_says(url: str, expected: dict[str, Any]) -> None:
    found = options_from_url(url)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (f"redis://:{SECRET}@h:port", "port"),
        (f"redis://:{SECRET}@h:99999", "port"),
        (f"redis://:{SECRET}@h/zero", "number of a database"),
        (f"redis://:{SECRET}@h/-1", "number of a database"),
        (f"redis://:{SECRET}@h?prefx=x", "there is no option 'prefx'"),
        (f"redis://:{SECRET}@h?prefix=", "prefix"),
        (f"redis://:{SECRET}@h?prefix={{x}}", "prefix"),
        (f"redis://:{SECRET}@h?timeout_s=soon", "timeout_s"),
        (f"redis://:{SECRET}@h?timeout_s=0", "timeout_s"),
        (f"redis://:{SECRET}@h?timeout_s=inf", "timeout_s"),
        (f"redis://:{SECRET}@h?cluster=perhaps", "cluster"),
        (f"redis://:{SECRET}@h/1?cluster=yes", "database 0"),
        (f"redis://:{SECRET}@h?ca=/etc/ours.pem", "rediss"),
        (f"redis+unix://:{SECRET}@run/redis.sock", "three slashes"),
    ],
)
def test_what_makes_no_sense_is_refused_without_the_password(url: str, why: str) -> None:
    with pytest.raises(Misconfigured, match=why) as caught:
        open_store(url)
    assert "sesame" not in str(caught.value)


def test_no_password_is_shown() -> None:
    store = open_store(f"rediss://anna:{SECRET}@cache.example/2?prefix=p")
    assert isinstance(store, RedisStore)
    assert repr(store) == "RedisStore('rediss://cache.example:6379/2')"
    assert "sesame" not in repr(options_from_url(f"redis://anna:{SECRET}@cache.example"))


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['redis'] = None\n"
        "from evenflow.errors import Misconfigured\n"
        "from evenflow.urls import open_store\n"
        "try:\n    open_store('redis://h')\n"
        "except Misconfigured as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'evenflow[redis]'" in run.stdout
