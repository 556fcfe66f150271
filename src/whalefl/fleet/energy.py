"""The joules a device spends: typical powers times seconds, an approximation for comparing methods."""

from __future__ import annotations

from whalefl.fleet.devices import Device
from whalefl.values import Delay, Energy


def energy_spent(device: Device, delay: Delay, radio_power_w: float) -> Energy:
    """Power times time, for the processor and for the radio; waiting for the others is not counted."""
    return Energy(computing_j=device.power_w * delay.computing_s, radio_j=radio_power_w * delay.transmission_s)
