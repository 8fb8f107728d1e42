"""Networks as settings name them."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

from pydantic import AfterValidator


def _are_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    try:
        for network in networks:
            ip_network(network)
    except ValueError:
        message = "names what is no network: write `10.1.0.0/16`, or `10.1.2.3/32` for one address."
        raise ValueError(message) from None
    return networks


Networks = Annotated[tuple[str, ...], AfterValidator(_are_networks)]
"""Networks of IPv4 or IPv6 with their prefix, or single addresses."""
