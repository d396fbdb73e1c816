"""Text from language models: prompts, choosing tokens, stopping; above any decoder, however it is run."""
