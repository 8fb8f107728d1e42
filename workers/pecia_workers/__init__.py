"""The fleet: what runs on the machines that read documents. Start with `app.py` or `runtime.py`."""

import os

# onnxruntime, from 1.29, reports names and hashes of models to its maker unless this is set before it is imported.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
