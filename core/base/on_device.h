#pragma once

/// These macros mark functions that GPU kernels call. nvcc compiles the functions for the GPU and, with
/// SHARDRUN_ON_BOTH, also for the processor. Other compilers compile all of them for the processor.
///
/// SHARDRUN_UNROLLED is put before a loop over small arrays, which stay in registers only if their indices are
/// constants. SHARDRUN_NOT_UNROLLED is put before a loop whose unrolled code would use too many registers.
#if defined(__CUDACC__)
#define SHARDRUN_ON_DEVICE __device__ __attribute__((always_inline))
#define SHARDRUN_ON_BOTH __host__ __device__
#define SHARDRUN_UNROLLED _Pragma("unroll")
#define SHARDRUN_NOT_UNROLLED _Pragma("unroll 1")
#else
#define SHARDRUN_ON_DEVICE
#define SHARDRUN_ON_BOTH
#define SHARDRUN_UNROLLED
#define SHARDRUN_NOT_UNROLLED
#endif
