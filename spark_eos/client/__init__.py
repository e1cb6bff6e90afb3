"""Client settings, security, connections and error codes."""
