"""The pass library, in rooms by concern. This table is all that the engine knows of it."""

PASSES: dict[str, tuple[str, ...]] = {
    "cast": (
        "megacompile_passes.precision.cast.exported:CastExported",
        "megacompile_passes.precision.cast.onnx:CastOnnx",
    ),
    "checkpoint": ("megacompile_passes.training.checkpoint.blocks:CheckpointBlocks",),
    "compile": ("megacompile_passes.training.compile:CompileStep",),
    "compress-activations": (
        "megacompile_passes.training.compress_activations:CompressActivations",
    ),
    "distribute": ("megacompile_passes.training.distribute:Distribute",),
    "export": ("megacompile_passes.convert.export:Export",),
    "fold-batchnorm": (
        "megacompile_passes.graph.fold_batchnorm.exported:FoldBatchNormExported",
        "megacompile_passes.graph.fold_batchnorm.onnx:FoldBatchNormOnnx",
        "megacompile_passes.graph.fold_batchnorm.scripted:FoldBatchNormScripted",
    ),
    "mixed-precision": ("megacompile_passes.training.mixed_precision:MixedPrecision",),
    "offload-activations": ("megacompile_passes.training.offload_activations:OffloadActivations",),
    "quantize": (
        "megacompile_passes.precision.quantize.exported:QuantizeExported",
        "megacompile_passes.precision.quantize.onnx:QuantizeOnnx",
    ),
    "recover": (
        "megacompile_passes.recover.eager:RecoverEager",
        "megacompile_passes.recover.quantized:RecoverQuantized",
    ),
    "script": ("megacompile_passes.convert.script:Script",),
    "share-parameters": (
        "megacompile_passes.structure.share_parameters.eager:ShareParametersEager",
    ),
    "simplify": (
        "megacompile_passes.graph.simplify.exported:SimplifyExported",
        "megacompile_passes.graph.simplify.onnx:SimplifyOnnx",
        "megacompile_passes.graph.simplify.scripted:SimplifyScripted",
    ),
    "to-onnx": ("megacompile_passes.convert.to_onnx:ToOnnx",),
    "training-step": ("megacompile_passes.training.training_step:TrainingStep",),
}
