"""`python -m di_engine.cli` is `di`."""

from di_engine.cli.app import main

if __name__ == "__main__":
    main()
