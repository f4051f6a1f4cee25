"""Channels last: what the operators with that layout share."""
