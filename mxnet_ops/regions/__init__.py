"""Regions: connected grafted operators of a symbol as one operator, whose values stay on the device."""
