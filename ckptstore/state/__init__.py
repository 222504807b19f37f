"""Channels, and the one fold that turns stored values and writes into state."""
