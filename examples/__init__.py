"""Programs that run as they are; each is used by a test."""
