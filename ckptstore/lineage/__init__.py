"""Who descends from whom, which writes made which child, and what a channel's ancestors contribute."""
