"""Devices: records that say what a device takes and what becomes of it, and what runs or compiles for them.

>>> import tosaic.devices
>>> [device.name for device in tosaic.devices.devices()][:3]
['host', 'vgf', 'ethos-u55']
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
