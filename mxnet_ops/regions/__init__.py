"""Regions: connected clgraft operators of a symbol as one operator, whose values stay on the device."""
