"""The phases of a step, as rehearsals name them."""

BUILD, FORWARD, BACKWARD, RECOMPUTE = "build", "forward", "backward", "recompute"
GRADIENTS, OPTIMIZER = "gradients", "optimizer"
