"""A model run step by step, over state that stays between steps."""
