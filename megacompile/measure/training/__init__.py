"""What is measured of training steps: the plain step tried, traces of steps, processes for them."""
