"""Who makes a step late, why, and what it would buy to mend it: one clock, waits, replay."""
