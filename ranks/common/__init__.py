"""What every part of a rank uses: tensors, processes, forks, progress."""
