"""What driver and tasks tell each other about one batch; pure values."""
