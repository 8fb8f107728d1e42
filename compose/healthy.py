"""`healthy.py URL`: exit 0 if it answers 200. Docker asks so whether a container's process is well."""

import sys
from http import HTTPStatus
from http.client import HTTPConnection  # not urllib, which would ask a proxy of the environment
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
connection = HTTPConnection(url.hostname, url.port, timeout=5)
connection.request("GET", url.path)
reply = connection.getresponse()
sys.stdout.write(reply.read().decode())
sys.exit(reply.status != HTTPStatus.OK)
