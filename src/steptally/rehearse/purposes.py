"""What Megatron itself says a storage is for."""

PARAMETER, MAIN_GRADIENT = "parameter", "main gradient"
