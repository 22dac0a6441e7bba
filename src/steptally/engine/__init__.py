"""Real Megatron-Core, made runnable on whatever device there is."""
