"""`fold-batchnorm`: a convolution's weights take over the normalization after it."""
