"""The mechanics behind `tools/release.py`: versions, changelogs, wheels and the package index."""
