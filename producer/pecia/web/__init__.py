"""The gateway's web page for people: submit documents, get results, and review the pages of a job."""
