"""What runs inside one rank: identity, the public inference API, sessions, collectives."""
