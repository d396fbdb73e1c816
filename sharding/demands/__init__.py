"""What a user, an annotation or a saved plan demands of a plan."""
