"""Where ranks are to run: lists of hosts, files of hosts, and what a batch system gave this job."""
