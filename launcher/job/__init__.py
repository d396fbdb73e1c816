"""What a job is to do: its options, hosts, model and inputs, all checked before any rank starts."""
