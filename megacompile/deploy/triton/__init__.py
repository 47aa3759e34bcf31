"""Bundles as model repositories of NVIDIA's Triton Inference Server."""
