"""How a token is chosen by a model's logits: penalties, temperature, the random numbers of a seed."""
