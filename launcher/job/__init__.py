"""What a job is to do: its options, hosts, model and inputs, checked before any rank is there."""
