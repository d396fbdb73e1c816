"""The inference API, with the names of the mindspore_lite package."""
