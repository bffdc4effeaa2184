"""``python -m tosaic.cli`` is the command ``tosaic``."""

from __future__ import annotations

import sys

from tosaic.cli import main

sys.exit(main())
