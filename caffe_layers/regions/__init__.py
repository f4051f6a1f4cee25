"""Regions: layers that are built as one graph, which one of them runs."""
