"""Requests on their way to ranks: what is known of each, futures and series of them; ranks started again."""
