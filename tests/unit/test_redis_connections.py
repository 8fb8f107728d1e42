"""Which error replies of Redis are about the server, by the words of versions 6.2 and 7."""

from collections.abc import Callable
from typing import Any

import pytest
from redis._parsers.base import BaseParser

from pecia_schemas.redis_connections import outage_in

parse: Callable[[str], Any] = BaseParser.parse_error

OUTAGES = {
    "READONLY You can't write against a read only replica.": "READONLY",
    "READONLY You can't write against a read only replica. script: 3a1f, on @user_script:2.": "READONLY",
    "ERR Error running script (call to f_3a1f): @user_script:1: @user_script: 1:"
    " -READONLY You can't write against a read only replica. ": "READONLY",
    "ERR Error running script (call to f_3a1f): @user_script:1: @user_script: 1:"
    " -NOREPLICAS Not enough good replicas to write.": "NOREPLICAS",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": "MASTERDOWN",
    "NOREPLICAS Not enough good replicas to write.": "NOREPLICAS",
    "UNBLOCKED force unblock from blocking operation, instance state changed": "UNBLOCKED",
    "MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.": "MISCONF",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.": "BUSY",
    "UNKILLABLE Sorry the script already executed write commands against the dataset.": "UNKILLABLE",
    "CLUSTERDOWN The cluster is down": "CLUSTERDOWN",
    "TRYAGAIN Multiple keys request during rehashing of slot": "TRYAGAIN",
}
OTHERS = (
    "OOM command not allowed when used memory > 'maxmemory'.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOSCRIPT No matching script. Please use EVAL.",
    "NOPERM this user has no permissions to run the 'set' command",
    "BUSYGROUP Consumer Group name already exists",
    "ERR unknown command 'READONLY-ISH'",
    "ERR Error running script (call to f_3a1f): @user_script:1: a page said READONLY",
)


@pytest.mark.parametrize(("reply", "code"), OUTAGES.items())
def test_a_reply_about_the_server_is_an_outage(reply: str, code: str) -> None:
    assert outage_in(parse(reply)) == code


@pytest.mark.parametrize("reply", OTHERS)
def test_a_reply_about_the_command_is_none(reply: str) -> None:
    assert outage_in(parse(reply)) is None
