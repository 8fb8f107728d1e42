"""What is seen of the fleet: metrics, traces, logs, Flower."""
