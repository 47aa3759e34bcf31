"""Tools for ONNX graphs: nodes, where values come from, tensors taken out for a while, and files
of any size. All of them load onnx: importers name the file."""
