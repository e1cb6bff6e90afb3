"""Values that driver and tasks exchange about one batch; pure."""
