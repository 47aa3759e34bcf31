"""What became of weights that several modules of an exported program share."""

from __future__ import annotations

from megacompile.models import Exported


def ties(before: Exported, after: Exported) -> list[str]:
    """A remark on shared weights, if there are any: whether float copies stay."""
    shared = sorted(_shared_weights(before))
    if not shared:
        return []
    left = after.program.state_dict
    state = "its quantized form is shared too"
    if any(key.endswith(name) for key in left for name in shared):
        state = "the float weight stays for its other uses, its quantized copy is separate"
    text = ", ".join(name.removeprefix("module.") for name in shared[:3])
    return [
        f"shared weights ({text}): {state}; {before.parameters()} parameters before, "
        f"{after.parameters()} after, by storage"
    ]


def _shared_weights(model: Exported) -> set[str]:
    """Weights of several uses, and the first name of each storage that has several names."""
    signature = model.program.graph_signature
    placeholders = [n for n in model.program.graph.nodes if n.op == "placeholder"]
    used_often = {n.name for n in placeholders if len(n.users) > 1}
    parameters = signature.inputs_to_parameters.items()
    shared = {name for node, name in parameters if node in used_often}
    names: dict[int, list[str]] = {}
    for name, value in model.program.state_dict.items():
        if name in signature.parameters or name in signature.buffers:
            names.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    return shared | {one[0] for one in names.values() if len(one) > 1}
