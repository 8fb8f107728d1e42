"""The contract between clients, workers and migrations: tasks, results, states, failures and events."""
