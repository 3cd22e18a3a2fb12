#pragma once

/// Marks functions that kernels of a GPU call. Under nvcc they are compiled for the GPU (and, with SHARDRUN_ON_BOTH,
/// for the processor too). Other compilers compile all of them for the processor.
#if defined(__CUDACC__)
#define SHARDRUN_ON_DEVICE __device__
#define SHARDRUN_ON_BOTH __host__ __device__
#else
#define SHARDRUN_ON_DEVICE
#define SHARDRUN_ON_BOTH
#endif
