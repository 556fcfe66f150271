"""The round over a real network: server and devices as a Flower app."""

from __future__ import annotations

import os

# Flower reports its use to its makers and looks for newer versions unless it is told not to.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

for _key, _value in QUIET.items():
    os.environ.setdefault(_key, _value)
