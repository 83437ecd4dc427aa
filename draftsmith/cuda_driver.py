"""NVIDIA's driver, asked through its own library for its version and for the GPUs, without any CUDA package."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnxkit.sizes import readable
from onnxkit.systems import on_linux, system

LIBRARY = "libcuda.so.1"

# CUdevice_attribute: the two parts of the compute capability.
_MAJOR, _MINOR = 75, 76


class DriverError(Exception):
    """The driver is missing, or answers with an error; the message says which."""


@dataclass(frozen=True)
class Gpu:
    """A GPU.

    Attributes:
        name: Its maker's name for it.
        capability: Its compute capability, such as ``(9, 0)``.
        memory: Its memory in bytes.
    """

    name: str
    capability: tuple[int, int]
    memory: int

    def __str__(self) -> str:
        major, minor = self.capability
        return f"{self.name}, compute capability {major}.{minor}, {readable(self.memory)}"


@dataclass(frozen=True)
class Driver:
    """The driver.

    Attributes:
        cuda: The newest CUDA version that it runs, such as ``(13, 0)``.
        gpus: The GPUs that a program sees, in the runtime's order. ``CUDA_VISIBLE_DEVICES`` chooses among them.
    """

    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]


def ask_driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver:
    """What the driver says about itself and the GPUs. No context is made, so no GPU memory is used.

    Args:
        load: Loads a shared library by its name.

    Raises:
        DriverError: There is no driver, it answers with an error, or this is not Linux.
    """
    if not on_linux():
        raise DriverError(f"NVIDIA's driver is looked for on Linux only, and this is {system()}")
    try:
        library = load(LIBRARY)
    except OSError as error:
        raise DriverError(str(error)) from error
    version, count = ctypes.c_int(), ctypes.c_int()
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    cuda = (version.value // 1000, version.value % 1000 // 10)
    try:
        _call(library, "cuInit", 0)
    except DriverError as error:
        if "CUDA_ERROR_NO_DEVICE" in str(error):
            return Driver(cuda, ())
        raise
    _call(library, "cuDeviceGetCount", ctypes.byref(count))
    return Driver(cuda, tuple(_gpu(library, index) for index in range(count.value)))


def _gpu(library: Any, index: int) -> Gpu:
    device, value, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(256)
    _call(library, "cuDeviceGet", ctypes.byref(device), index)
    _call(library, "cuDeviceGetName", name, len(name), device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Gpu(name.value.decode(errors="replace"), (capability[0], capability[1]), memory.value)


def _call(library: Any, function: str, *arguments: Any) -> None:
    code = getattr(library, function)(*arguments)
    if code:
        name = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(name))
        raise DriverError(f"{function}: {(name.value or b'an unknown error').decode()} ({code})")
