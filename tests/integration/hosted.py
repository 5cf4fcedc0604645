"""What a host runs in tests: `evenflow run tests.integration.hosted:processor`, with its ORDERS in the environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from tests.integration.instance import Orders, make_processor

if TYPE_CHECKING:
    from evenflow import Processor


def processor() -> Processor:
    return make_processor(msgspec.json.decode(os.environ["ORDERS"], type=Orders))
