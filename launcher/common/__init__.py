"""What every part of the launcher uses: exits, report, files."""
