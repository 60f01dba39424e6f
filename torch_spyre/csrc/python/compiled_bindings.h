#pragma once

#include <pybind11/pybind11.h>

namespace spyre {

void bind_compiled(pybind11::module& m);

}  // namespace spyre
