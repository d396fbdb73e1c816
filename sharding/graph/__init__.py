"""What is known of a graph before it is planned: constants, shapes, symbols."""
