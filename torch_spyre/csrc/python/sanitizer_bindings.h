// Switching the sanitizer on and off, and its error in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace spyre {

void bind_sanitizer(pybind11::module& m);

}  // namespace spyre
