"""Feeding: workers that compute examples, a scheduler that assigns them, consumers in ranks.

Always holds: without the packages that it needs it is refused here, before anything is started.
"""

from importlib.util import find_spec

from codegen.errors import EnvironmentFault

PACKAGES = {  # as Python and pip call them
    "zmq": "pyzmq", "lz4": "lz4", "zstandard": "zstandard",
    "prometheus_client": "prometheus-client",
}

if missing := [package for name, package in PACKAGES.items() if find_spec(name) is None]:
    raise EnvironmentFault(f"feeding needs {' and '.join(missing)}, not installed here",
                           remedy=f"pip install {' '.join(PACKAGES.values())}")
