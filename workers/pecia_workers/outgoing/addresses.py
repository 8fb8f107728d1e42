"""Which addresses a stranger may make us call: the public ones, and the networks an operator names."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
# Not public, whatever the running Python's tables say about them.
_NEVER = tuple(
    ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments, Oracle's metadata among them
        "168.63.129.16/32",  # Azure's platform, as every machine there sees it
        "192.88.99.0/24",  # 6to4 relays, withdrawn (RFC 7526)
        "2001::/23",  # protocol assignments, Teredo among them
        "3fff::/20",  # documentation (RFC 9637)
    )
)


def is_admitted(address: str, allow: Collection[Network] = ()) -> bool:
    """Return whether an address, as the resolver wrote it, may be called.

    Addresses that carry an IPv4 address inside (mapped, NAT64, 6to4) are judged by that one.
    """
    target = _innermost(ip_address(address.partition("%")[0]))
    if _within(target, allow):
        return True
    return _is_public(target) and not _within(target, _NEVER)


def _innermost(address: Address) -> Address:
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _is_public(address: Address) -> bool:
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST


def _within(address: Address, networks: Collection[Network]) -> bool:
    return any(address in network for network in networks)
