"""Client settings, security and connections."""
