"""After the build: a bundle finished or timed on another machine, and served with Triton."""

from megacompile.deploy.bench import bench_bundle, render_bench
from megacompile.deploy.finish import finish_bundle
from megacompile.deploy.triton.export import export_triton

__all__ = ["bench_bundle", "export_triton", "finish_bundle", "render_bench"]
