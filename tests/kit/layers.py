"""Where llama.cpp puts the layers of a model, by its own account."""

import ctypes

from edgechat.native import ggml
from edgechat.native.handles import Model

LAYER = "_ZNK11llama_model9dev_layerEi"
OUTPUT = "_ZNK11llama_model10dev_outputEv"


def layer_devices(model: Model) -> tuple[str, ...]:
    """Return the device of each layer and, last, of the output.

    Empty if this build does not export the C++ functions for that.
    """
    if not (ggml.exported(LAYER) and ggml.exported(OUTPUT)):
        return ()
    pointer = ctypes.c_void_p(model.pointer)
    layers = range(model.n_layers)
    handles = [ggml.call(LAYER, ctypes.c_void_p, pointer, ctypes.c_int(layer)) for layer in layers]
    handles.append(ggml.ask(OUTPUT, ctypes.c_void_p, model.pointer))
    return tuple(map(ggml.device_name, handles))
