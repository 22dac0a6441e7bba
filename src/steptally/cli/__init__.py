"""One file a verb: read arguments, compose the packages, render."""
