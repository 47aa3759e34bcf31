"""`config.pbtxt`, written through Triton's own protobuf messages (model_config.proto)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from megacompile.deploy.triton.ports import Interface, Port
from megacompile.deploy.triton.tuning import Tuning
from megacompile.errors import BundleError
from megacompile.spec import Triton, Versions

INSTALL = "pip install 'megacompile[triton]'"


def messages() -> Any:
    """Triton's generated protobuf module.

    Raises:
        BundleError: the client library that carries it is not installed.
    """
    try:
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise BundleError(
            what="writing a Triton configuration needs 'tritonclient'",
            cause=str(error),
            remedy=INSTALL,
        ) from error
    return model_config_pb2


@dataclass(frozen=True)
class Served:
    """One model of the repository, but for its tensors."""

    name: str
    backend: str
    max_batch_size: int
    gpu: bool
    platform: str = ""
    filename: str = ""
    filenames_by_arch: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)


def model_config(
    served: Served, interface: Interface, wanted: Triton, tuning: Tuning | None
) -> Any:
    """The configuration of one model; `tuning` None turns dynamic batching off."""
    pb = messages()
    config = pb.ModelConfig(
        name=served.name,
        backend=served.backend,
        platform=served.platform,
        max_batch_size=served.max_batch_size,
        default_model_filename=served.filename,
    )
    config.cc_model_filenames.update(served.filenames_by_arch)
    _add_ports(pb, config, interface.inputs, interface.outputs)
    if served.backend == "python" and served.max_batch_size > 0:
        _let_shapes_mix(config)
    kind = pb.ModelInstanceGroup.KIND_GPU if served.gpu else pb.ModelInstanceGroup.KIND_CPU
    config.instance_group.add(kind=kind, count=wanted.instances)
    for name, value in served.parameters.items():
        config.parameters[name].string_value = value
    if tuning is not None and served.max_batch_size > 0:
        batching = config.dynamic_batching
        batching.preferred_batch_size.extend(tuning.preferred)
        batching.max_queue_delay_microseconds = tuning.delay_us
        # Without this the message is empty where nothing is preferred, and empty means off.
        config.dynamic_batching.SetInParent()
    set_versions(config, wanted.versions)
    return config


def _add_ports(pb: Any, config: Any, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    for message, ports in ((config.input, inputs), (config.output, outputs)):
        for port in ports:
            one = message.add(name=port.name, data_type=data_type(pb, port), dims=port.shape or [1])
            if not port.shape and config.platform != "ensemble":
                # Triton knows no tensor without sizes: clients see one axis more, the model none.
                one.reshape.SetInParent()


def _let_shapes_mix(config: Any) -> None:
    """Let the server hand over requests of different sizes together. It would end a batch at the
    first request of another shape; our runner sorts them by shape instead."""
    for one in config.input:
        one.allow_ragged_batch = -1 in one.dims


def set_versions(config: Any, versions: Any) -> None:
    """Which versions the server offers."""
    if versions == "all":
        config.version_policy.all.SetInParent()
    elif isinstance(versions, Versions) and versions.latest is not None:
        config.version_policy.latest.num_versions = versions.latest
    elif isinstance(versions, Versions):
        config.version_policy.specific.versions.extend(versions.specific or [])


def add_warmup(
    config: Any,
    interface: Interface,
    files: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
    sizes: Sequence[int],
) -> None:
    """Requests that run before a version is ready: the bundle's sample at several batch sizes.

    `files` are names inside the model's `warmup` folder; `shapes` those of one sample.
    """
    pb = messages()
    for size in sizes:
        request = config.model_warmup.add(name=f"sample, batch {size}", batch_size=size, count=1)
        for port in interface.inputs:
            one = request.inputs[port.name]
            one.data_type = data_type(pb, port)
            one.dims.extend(shapes[port.name] or [1])
            one.input_data_file = files[port.name]


def ensemble_config(
    name: str,
    steps: Sequence[tuple[str, Sequence[Port], Sequence[Port]]],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    max_batch_size: int,
    wanted: Triton,
) -> Any:
    """One request through several models; tensors are handed on under their own names."""
    pb = messages()
    config = pb.ModelConfig(name=name, platform="ensemble", max_batch_size=max_batch_size)
    _add_ports(pb, config, inputs, outputs)
    for model, takes, gives in steps:
        step = config.ensemble_scheduling.step.add(model_name=model, model_version=-1)
        for port in takes:
            step.input_map[port.name] = port.name
        for port in gives:
            step.output_map[port.name] = port.name
    set_versions(config, wanted.versions)
    return config


def data_type(pb: Any, port: Port) -> int:
    """The number of a tensor's type in Triton's enumeration."""
    return int(pb.DataType.Value(port.triton_type))


def to_text(config: Any) -> str:
    """The text of `config.pbtxt`."""
    from google.protobuf import text_format  # type: ignore[import-untyped]

    return str(text_format.MessageToString(config))


def from_text(text: str, where: str) -> Any:
    """The message that a `config.pbtxt` holds.

    Raises:
        BundleError: it is not one.
    """
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, messages().ModelConfig())
    except text_format.ParseError as error:
        raise BundleError(
            what="the configuration there can't be read",
            where=where,
            cause=str(error),
            remedy="mend it, or name another repository",
        ) from error


# What may differ between two exports of one model: the versions before go on being served as
# they were, whatever is tuned.
TUNED = ("dynamic_batching", "instance_group", "model_warmup", "version_policy")


def difference(old: Any, new: Any) -> str | None:
    """The first thing that clients, or the versions already there, would notice; None if the two
    configurations mean the same to them."""
    for field_ in old.DESCRIPTOR.fields:
        if field_.name in TUNED:
            continue
        if getattr(old, field_.name) != getattr(new, field_.name):
            before = " ".join(str(getattr(old, field_.name)).split())
            after = " ".join(str(getattr(new, field_.name)).split())
            return f"{field_.name}: {before or 'unset'} there, {after or 'unset'} now"
    return None
