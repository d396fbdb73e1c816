"""Every way in which a rank, a launcher, a host or a cable can die, tried with every way to start ranks."""
