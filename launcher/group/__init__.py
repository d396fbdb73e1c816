"""Started ranks as a group: watched, asked, ended, the first cause of an end named."""
