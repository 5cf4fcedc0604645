"""What an object store's URL says, and what is wrong with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evenflow.errors import Misconfigured
from evenflow.stores.objects.options import PREFIX, TIMEOUT_S, ObjectStoreOptions, options_from_url
from evenflow.stores.objects.store import from_url

SECRET = "open-sesame"


def test_a_bucket_is_all_that_it_needs() -> None:
    assert options_from_url("s3://leases") == ObjectStoreOptions("s3", "leases", PREFIX, TIMEOUT_S)
    assert options_from_url("s3://leases/") == options_from_url("s3://leases")
    assert options_from_url("s3://leases/team/a").prefix == "team/a"


def test_short_words_are_put_into_the_drivers() -> None:
    found = options_from_url(
        "s3://b?endpoint=http://127.0.0.1:9000&region=eu-north-1&path_style=no&allow_http=yes&timeout_s=1.5"
    )
    assert found.driver_options == {
        "endpoint": "http://127.0.0.1:9000",
        "region": "eu-north-1",
        "virtual_hosted_style_request": True,
    }
    assert (found.allow_http, found.timeout_s) == (True, 1.5)
    assert options_from_url("az://b?account=me").driver_options == {"account_name": "me"}
    assert options_from_url("gs://b?endpoint=http://127.0.0.1:4443&allow_http=yes").driver_options == {
        "base_url": "http://127.0.0.1:4443"
    }
    assert (options_from_url("azure://b").kind, options_from_url("azure://b").scheme) == ("az", "azure")


def test_other_options_are_the_drivers_own() -> None:
    assert options_from_url("s3://b?sse_kms_key_id=k&session_token=t").driver_options == {
        "sse_kms_key_id": "k",
        "session_token": "t",
    }


@pytest.mark.parametrize(
    "url",
    [
        f"s3://leases/a?access_key_id={SECRET}&secret_access_key={SECRET}",
        f"az://leases/a?account={SECRET}&sas_key=sig%3D{SECRET}",
        f"gs://leases/a?bearer_token={SECRET}",
    ],
)
def test_secrets_are_never_shown(url: str) -> None:
    found = options_from_url(url)
    assert SECRET not in f"{found} {found!r} {from_url(url)!r}"
    assert str(found) == f"{found.scheme}://leases/a"


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("s3:", "bucket is missing"),
        ("s3:///a", "bucket is missing"),
        (f"s3://me:{SECRET}@leases", "user and a password"),
        ("s3://b/a//b", "empty parts"),
        ("s3://b/../a", "empty parts"),
        ("s3://b/%0a", "letters, digits"),
        ("s3://b/a%7Eb", "letters, digits"),
        (f"s3://b/{'x' * 300}", "at most 256"),
        ("s3://b?timeout_s=0", "timeout_s"),
        ("s3://b?timeout_s=soon", "timeout_s"),
        ("s3://b?allow_http=perhaps", "allow_http"),
        ("s3://b?endpoint=http://127.0.0.1:9000", "allow_http=yes"),
        ("s3://b?path_style=perhaps", "path_style"),
        ("s3://b?region=a&region=b", "twice"),
        ("gs://b?region=a", "for s3"),
        ("s3://b?account=me", "for az"),
        ("http://b", "unknown scheme"),
    ],
)
def test_what_makes_no_sense_is_said(url: str, word: str) -> None:
    with pytest.raises(Misconfigured, match=word) as caught:
        options_from_url(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        (f"s3://b?nonsense={SECRET}", "no option 'nonsense'"),
        (f"s3://b?access_key_id=a&secret_access_key={SECRET}&conditional_put={SECRET}", "s3://b/evenflow"),
        (f"az://b?account=a&account_key={SECRET}!", "az://b/evenflow"),
        ("az://b", "az://b/evenflow"),
    ],
)
def test_what_the_driver_refuses_is_said_without_secrets(url: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Misconfigured, match=word) as caught:
        from_url(url)
    assert SECRET not in f"{caught.value} {caught.value.__cause__}"


def test_without_the_driver_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from evenflow.errors import Misconfigured\n"
        "from evenflow.urls import open_store\n"
        "try:\n    open_store('s3://leases')\n"
        "except Misconfigured as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'evenflow[objects]'" in run.stdout
