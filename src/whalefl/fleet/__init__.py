"""How long a device takes, what that costs in energy, and why both change: devices, links, weather, traces."""
