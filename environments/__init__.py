"""What an environment is: typed, validated, frozen. Knows nothing of AWS calls."""
