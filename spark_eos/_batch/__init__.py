"""Values that the driver and tasks exchange about one batch; pure."""
