"""Entry point of `python -m deepseek_recipe`."""

import sys

from deepseek_recipe.cli import main

sys.exit(main())
