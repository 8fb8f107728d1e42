"""The fleet: what runs on the machines that read documents. Start with `app.py` or `runtime.py`."""
