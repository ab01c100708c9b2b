// How fast the kernels are, against a copy within the GPU's memory in the same run.
#pragma once

namespace sluice::gpu {

// Prints the table of docs/gpu.md. Returns the process's exit code.
int PrintTable();

}  // namespace sluice::gpu
