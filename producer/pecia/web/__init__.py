"""The gateway's page for people: documents in, results out, and review of a job's pages."""
