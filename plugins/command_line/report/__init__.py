"""``clgraft report``: what a device is, what it can do and how fast it is, in a file that a user may send in."""
