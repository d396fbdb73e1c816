"""How ranks are started: one module a starter."""
