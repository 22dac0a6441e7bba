"""Published results, one row each, held against what the accounts predict for them."""
