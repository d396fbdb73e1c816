"""The main job: a real sentence encoder, sliced for two ranks and run on real sentences."""
