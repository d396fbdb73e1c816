"""A server in front of groups of ranks: the Open Inference Protocol, OpenAI's, metrics, one page."""
