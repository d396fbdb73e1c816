"""The OpenAI protocol: completions, chats, embeddings."""
