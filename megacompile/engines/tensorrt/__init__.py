"""TensorRT: engines for NVIDIA GPUs, built where no GPU is."""
