"""How other hosts are reached over ssh, and what is said of those that are not."""

CONNECT_SECONDS = 7
"""After which ssh gives up a host that answers nothing."""
