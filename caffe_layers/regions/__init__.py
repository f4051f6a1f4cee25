"""Regions: layers that record what they compute; the last one of a region runs everything as one graph."""
