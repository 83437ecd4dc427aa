"""A graph in onnxruntime, on the CPU or a GPU, whose states stay where it runs from one run to the next."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import torch
import torch.utils.dlpack

Array = np.ndarray[Any, Any]

_TORCH = {
    "tensor(float)": torch.float32,
    "tensor(float16)": torch.float16,
    "tensor(bfloat16)": torch.bfloat16,
}
_NUMBERS = {name: ir.DataType.from_short_name(short).value for name, short in (
    ("tensor(float)", "f32"), ("tensor(float16)", "f16"), ("tensor(bfloat16)", "bf16"))}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where graphs run.

    Attributes:
        providers: onnxruntime's execution providers, in order of preference, with or without options.
        device: onnxruntime's name of the device whose memory holds the states.
        alone: Whether the first provider must take all nodes; if not, onnxruntime uses the CPU for the rest.
    """

    providers: tuple[str | tuple[str, dict[str, str]], ...]
    device: str
    alone: bool = False


CPU = Place(("CPUExecutionProvider",), "cpu")
GPU = Place(("CUDAExecutionProvider",), "cuda", alone=True)
GPU_AND_CPU = Place(("CUDAExecutionProvider", "CPUExecutionProvider"), "cuda")  # shapes and masks of dense graphs


class Session:
    """A graph in onnxruntime. Inputs and outputs are numpy arrays, in float32 where the graph has a 16-bit type.

    States stay on the device. Paged ones (``past_key_values``) are written in place there, as the Engine does;
    on the CPU every run makes new ones.

    Args:
        graph: The graph's file.
        place: Where it runs.
        data: The folder of its external data, if that is not the graph's own.
        paged: Whether the caches are pages, which a GPU's operator writes in place.
    """

    def __init__(self, graph: Path, place: Place = CPU, data: Path | None = None, *, paged: bool = False) -> None:
        options = ort.SessionOptions()
        if place.alone:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if data is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(data))
        source = graph if data is None else graph.read_bytes()
        self.session = ort.InferenceSession(source, options, providers=list(place.providers))
        self.device = place.device
        self.in_place = paged and place.device != "cpu"
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.states: dict[str, ort.OrtValue] = {}

    def put(self, name: str, array: Array) -> None:
        """Give a state its first value."""
        value = self._value(name, array)
        self.states[name] = value if self.device == "cpu" else self._there(name, value)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; returns the outputs that are not states."""
        binding = self.session.io_binding()
        values = {name: self._value(name, array) for name, array in feeds.items()} | self.states
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        past = {_present(name): name for name in self.states}
        wanted = [name for name in self.outputs if name not in past and not name.startswith("state_update")]
        for name in self.outputs:
            if name in past and self.in_place and past[name].startswith("past_key_values"):
                binding.bind_ortvalue_output(name, self.states[past[name]])
            else:
                binding.bind_output(name, "cpu" if name in wanted else self.device)
        self.session.run_with_iobinding(binding)
        results = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        self.states = {name: results[_present(name)] for name in self.states}
        return {name: _array(results[name]) for name in wanted}

    def times(self, feeds: Mapping[str, Array], count: int, graph: int = 1, warm: int = 8) -> list[float]:
        """Seconds for each of ``count`` equal runs, after a warm-up. All that is read and written stays in place.

        Each run ends when the device has finished it. States of linear layers are not carried on. If the session has
        CUDA graphs, the one with that number is recorded and replayed; other feeds need another number.
        """
        places = dict(zip(self.inputs, self.session.get_input_memory_infos(), strict=True))
        binding = self.session.io_binding()
        kept = dict(self.states)  # the binding does not keep what it is given
        for name, array in feeds.items():
            value = self._value(name, array)
            kept[name] = value if places[name].name.lower() == "cpu" else self._there(name, value)
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
        past = {_present(name): name for name in self.states if name.startswith("past_key_values")}
        for name in self.outputs:
            if name in past and self.in_place:
                binding.bind_ortvalue_output(name, self.states[past[name]])
            else:
                binding.bind_output(name, self.device)
        unrecorded, recorded = ort.RunOptions(), ort.RunOptions()
        unrecorded.add_run_config_entry("gpu_graph_id", "-1")
        recorded.add_run_config_entry("gpu_graph_id", str(graph))
        self.session.run_with_iobinding(binding, unrecorded)
        outputs = dict(zip(self.outputs, binding.get_outputs(), strict=True))
        binding.clear_binding_outputs()
        for name, value in outputs.items():  # a recorded graph always writes to the same places as when it was recorded
            binding.bind_ortvalue_output(name, value)
        seconds = []
        for _ in range(warm + count):
            start = time.perf_counter()
            self.session.run_with_iobinding(binding, recorded)
            seconds.append(time.perf_counter() - start)
        return seconds[warm:]

    def _there(self, name: str, value: ort.OrtValue) -> ort.OrtValue:
        """A value on the device."""
        kind = _NUMBERS.get(self.inputs[name].type, value.element_type())
        there = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape()), kind, self.device, 0)
        there.update_inplace(value)
        return there

    def _value(self, name: str, array: Array) -> ort.OrtValue:
        """A value of the type that an input has, in the host's memory: the runtime copies it to where it is read."""
        dtype = _TORCH.get(self.inputs[name].type)
        array = np.ascontiguousarray(array)
        if dtype is None:
            return ort.OrtValue.ortvalue_from_numpy(array)
        return ort.OrtValue.from_dlpack(torch.from_numpy(array).to(dtype))


def _present(name: str) -> str:
    """The output that a state becomes."""
    return name.replace("past_key_values" if name.startswith("past_key_values") else "past", "present", 1)


def _array(value: ort.OrtValue) -> Array:
    """A copy of a value in the host's memory; 16-bit floats are widened."""
    tensor = torch.utils.dlpack.from_dlpack(value)
    return (tensor.to(torch.float32) if tensor.is_floating_point() else tensor).numpy().copy()
