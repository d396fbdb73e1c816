"""The checks: one module each, which looks at one thing and says what it found and what to do."""
