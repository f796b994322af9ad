"""Trains the built-in tiny checkpoint. See `tools/tiny`.

    python tools/train_tiny.py download prepare backbone plain drafter export

The stages `backbone`, `plain` and `drafter` need torch, safetensors and di-kernels only, so that
they can run on another machine than the rest. `--help` tells the budgets and sizes.
"""

from __future__ import annotations

import sys

from tiny.cli import main

if __name__ == "__main__":
    sys.exit(main())
