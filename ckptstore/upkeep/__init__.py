"""Upkeep of a store, on the storage protocol."""
