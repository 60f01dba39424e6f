// matmul/kernels.inl for every processor; tests compare it with the other forms bit for bit.
#include "matmul/kernels.inl"
