"""What a server says of its work: numbers of its ranks, spans of its requests, and what each took."""
