"""Entry point of `python -m deepseek_recipe`."""

import sys

from deepseek_recipe.cli import main

if __name__ == "__main__":
    sys.exit(main())
