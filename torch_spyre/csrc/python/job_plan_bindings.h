// The names of torch_spyre._C for compiled kernels: prepare_kernel, launch_jobplan, JobPlan,
// launch_kernel.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace spyre {

void bind_job_plans(pybind11::module& m);

}  // namespace spyre
