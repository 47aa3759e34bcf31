"""Passes from one form to the next: eager to exported or TorchScript, exported to ONNX."""
