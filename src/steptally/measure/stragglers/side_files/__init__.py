"""Optional files beside traces: GPU and NIC logs, NUMA places, tokens per expert."""
