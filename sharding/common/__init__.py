"""What every part of slicing uses: text for people, documents, limits, names, and what the disk says."""
