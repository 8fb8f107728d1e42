"""A gateway before a fleet that waits for orders."""

from collections.abc import Iterator

import pytest

from pecia import Client
from tests.shared.contract_fleets import real_fleet
from tests.shared.gateways import Gateway, serving
from tests.shared.real_fleet import RealFleet

__all__ = ["real_fleet"]


@pytest.fixture(scope="module")
def gateway(real_fleet: RealFleet) -> Iterator[Gateway]:
    with serving(real_fleet.settings) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def fleet(real_fleet: RealFleet) -> Iterator[RealFleet]:
    real_fleet.kind = Client
    yield real_fleet
    real_fleet.empty()
    real_fleet._postgres.execute("DELETE FROM endpoints")
