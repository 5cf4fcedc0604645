"""Leases in the same container that are of others: who is new beside them may have meant them."""

from __future__ import annotations

import logging

import pytest

from evenflow.errors import Misconfigured
from evenflow.model import Convention, Group
from evenflow.stores.cosmos.neighbours import Neighbour, is_one_account, meet, told_by
from evenflow.stores.cosmos.options import address

HOST, ENDING = "shop.documents.azure.com", "_AAAAAA==_AAAAAIAAAAE="
GROUP = Group(HOST, "sales/orders", "billing")
CONVENTION = Convention(
    prefix=f"billing{HOST}{ENDING}", ending=ENDING, prefix_by_names=f"billing{HOST}_sales_orders", mode=""
)


def test_neighbours_are_told_by_ids() -> None:
    found = told_by(
        ["a_x_y..0", "a_x_y..1", "a_x_y.info", "b_x_y..3F-FF", "b_x_y.evenflow.group", "b.evenflow.past...7"]
    )
    assert found == [Neighbour("a_x_y", 2, is_ours=False), Neighbour("b_x_y", 1, is_ours=True)]


@pytest.mark.parametrize("is_ours", [True, False])
def test_one_name_under_two_hosts_is_refused(is_ours: bool) -> None:
    theirs = Neighbour(f"billingshop-westeurope.documents.azure.com{ENDING}", 2, is_ours)
    with pytest.raises(Misconfigured, match="shop-westeurope") as refused:
        meet(GROUP, CONVENTION, [theirs], "store")
    assert (f"prefix={theirs.prefix}" in str(refused.value)) is not is_ours, "what ours have run in has another group"
    assert f"prefix={CONVENTION.prefix} " in str(refused.value)


def heard(caplog: pytest.LogCaptureFixture, prefix: str, *, is_ours: bool = False) -> list[int]:
    with caplog.at_level(logging.INFO, "evenflow"):
        meet(GROUP, CONVENTION, [Neighbour(prefix, 2, is_ours)], "store")
    assert all(prefix in record.getMessage() for record in caplog.records)
    return [record.levelno for record in caplog.records]


@pytest.mark.parametrize("name", ["Billing", "biling", "billing-python", "mails"])
def test_another_name_is_told_of(name: str, caplog: pytest.LogCaptureFixture) -> None:
    assert heard(caplog, f"{name}{HOST}{ENDING}") == [logging.WARNING]
    assert repr(name) in caplog.text


def test_processors_of_ours_on_one_container_are_nothing_odd(caplog: pytest.LogCaptureFixture) -> None:
    assert heard(caplog, f"mails{HOST}{ENDING}", is_ours=True) == [logging.INFO]


def test_a_misspelt_name_is_told_of_though_ours_have_run_with_it(caplog: pytest.LogCaptureFixture) -> None:
    assert heard(caplog, f"biling{HOST}{ENDING}", is_ours=True) == [logging.WARNING]


@pytest.mark.parametrize(
    "prefix",
    [
        CONVENTION.prefix,
        CONVENTION.prefix_by_names,
        f"billing{HOST}_AAAAAA==_BBBBBBBBBBB=",
        f"billingother{HOST}_AAAAAA==_BBBBBBBBBBB=",
        "billing@other@hub",
    ],
)
def test_leases_of_other_containers_concern_nobody(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    assert heard(caplog, prefix) == []


def test_a_longer_name_beside_another_host_is_no_other_spelling(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can tell where the name ends: what may be a name that begins with ours is told of, and not refused."""
    assert heard(caplog, f"billingsshop-westeurope.documents.azure.com{ENDING}") == [logging.WARNING]


@pytest.mark.parametrize(
    ("one", "other", "are"),
    [
        ("shop.documents.azure.com", "shop-westeurope.documents.azure.com", True),
        ("localhost", "127.0.0.1", True),
        ("shop.documents.azure.com", "sshop.documents.azure.com", False),
        ("shop.documents.azure.com", "shop.documents.azure.cn", False),
        ("localhost", "shop.documents.azure.com", False),
    ],
)
def test_one_account_has_several_hosts(one: str, other: str, are: bool) -> None:
    assert (is_one_account(one, other), is_one_account(other, one)) == (are, are)


def test_by_names_it_may_be_another_account(caplog: pytest.LogCaptureFixture) -> None:
    assert heard(caplog, "billingother.documents.azure.com_sales_orders") == [logging.WARNING]


@pytest.mark.parametrize("written", ["a+b==_c++d=", "a%2Bb==_c%2B%2Bd="])
def test_a_prefix_may_be_written_as_it_is_found(written: str) -> None:
    assert address(f"cosmos-leases://localhost/shop/leases?prefix={written}&shared=no")[1].prefix == "a+b==_c++d="
