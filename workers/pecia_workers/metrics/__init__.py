"""What a process of the fleet tells of its work: figures for Prometheus, and whether it moves."""
