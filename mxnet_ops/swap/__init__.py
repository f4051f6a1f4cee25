"""Swaps of symbols and Gluon nets."""
