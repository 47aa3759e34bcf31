"""The pass library: one pass per file. This table is all that the engine knows of it."""

PASSES: dict[str, tuple[str, ...]] = {
    "cast": (
        "megacompile_passes.cast_exported:CastExported",
        "megacompile_passes.cast_onnx:CastOnnx",
    ),
    "checkpoint": ("megacompile_passes.checkpoint:CheckpointBlocks",),
    "compile": ("megacompile_passes.compile_step:CompileStep",),
    "compress-activations": ("megacompile_passes.compress_activations:CompressActivations",),
    "distribute": ("megacompile_passes.distribute:Distribute",),
    "export": ("megacompile_passes.export:Export",),
    "fold-batchnorm": (
        "megacompile_passes.fold_batchnorm_exported:FoldBatchNormExported",
        "megacompile_passes.fold_batchnorm_onnx:FoldBatchNormOnnx",
        "megacompile_passes.fold_batchnorm_scripted:FoldBatchNormScripted",
    ),
    "mixed-precision": ("megacompile_passes.mixed_precision:MixedPrecision",),
    "offload-activations": ("megacompile_passes.offload_activations:OffloadActivations",),
    "quantize": (
        "megacompile_passes.quantize_exported:QuantizeExported",
        "megacompile_passes.quantize_onnx:QuantizeOnnx",
    ),
    "recover": (
        "megacompile_passes.recover_eager:RecoverEager",
        "megacompile_passes.recover_quantized:RecoverQuantized",
    ),
    "script": ("megacompile_passes.script:Script",),
    "share-parameters": ("megacompile_passes.share_parameters_eager:ShareParametersEager",),
    "simplify": (
        "megacompile_passes.simplify_exported:SimplifyExported",
        "megacompile_passes.simplify_onnx:SimplifyOnnx",
        "megacompile_passes.simplify_scripted:SimplifyScripted",
    ),
    "to-onnx": ("megacompile_passes.to_onnx:ToOnnx",),
    "training-step": ("megacompile_passes.training_step:TrainingStep",),
}
