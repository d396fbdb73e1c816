"""What every part of the launcher uses: exit codes, reports, files that are written whole."""
