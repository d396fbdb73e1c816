"""Jobs for job systems: what one is told of a job, how its log is followed, and how the job ended."""
