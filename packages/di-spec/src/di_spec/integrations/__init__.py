"""Adapters for other engines. Each imports only where that engine is installed."""
