"""Poll a cloud's metadata service, and create a file when it takes this spot machine back.

PECIA_TERMINATION_NOTICE has the path of that file: `python examples/spot_notice.py aws /run/pecia/notice`
"""

import json
import sys
import time
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

LINK_LOCAL = "http://169.254.169.254"
SERVERS = {"aws": LINK_LOCAL, "gcp": "http://metadata.google.internal", "azure": LINK_LOCAL}


def ask(url: str, name: str, value: str, method: str = "GET") -> str:
    """Return the service's answer to a request with one header."""
    request = Request(url, method=method, headers={name: value})  # noqa: S310  the addresses are constants
    direct = build_opener(ProxyHandler({}))  # no proxy knows this machine's metadata
    return str(direct.open(request, timeout=5).read().decode())


def is_announced(cloud: str, server: str) -> bool:
    """Return whether the machine will be taken away. Raises `OSError` if the service does not say so."""
    if cloud == "aws":  # 404, an OSError, while there is no notice
        token = ask(f"{server}/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds", "60", "PUT")
        ask(f"{server}/latest/meta-data/spot/instance-action", "X-aws-ec2-metadata-token", token)
        return True
    if cloud == "gcp":
        answer = ask(f"{server}/computeMetadata/v1/instance/preempted", "Metadata-Flavor", "Google")
        return answer.strip() == "TRUE"
    instance = f"{server}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    name = ask(instance, "Metadata", "true").strip()
    events = json.loads(ask(f"{server}/metadata/scheduledevents?api-version=2020-07-01", "Metadata", "true"))
    return any(  # the other machines of a scale set are listed too
        event["EventType"] in {"Preempt", "Terminate"} and name in event["Resources"]
        for event in events["Events"]
    )


def main(cloud: str, notice: str, server: str = "") -> None:
    """Poll every two seconds, until the machine will be taken away."""
    while True:
        try:
            if is_announced(cloud, server or SERVERS[cloud]):
                Path(notice).touch()
                return
        except (OSError, ValueError):
            pass  # no notice, or a service that does not answer
        time.sleep(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
