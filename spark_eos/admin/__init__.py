"""What operators see and do: the state of a query, a query taken over."""
