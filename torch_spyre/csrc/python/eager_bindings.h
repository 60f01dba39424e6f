// Eager operations on the card, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace spyre {

void bind_eager(pybind11::module& m);

}  // namespace spyre
