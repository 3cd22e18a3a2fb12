#pragma once

/// Functions with which tests control the fake libnccl.so.2. They are C functions, found by dlsym. The fake works
/// between processes of one machine. FAKE_NCCL_VERSION is the version that it reports. With FAKE_NCCL_REGISTERED, all
/// memory of the runtime must be registered. FAKE_NCCL_KILL=1:200 kills the process of member 1 of any communicator in
/// its 200th launch.
///
/// These misuses are counted, and make the communicator fail:
/// - a call without its device being current, in a blocking communicator, while another call is in progress, from two
///   threads at once, or after an abort
/// - a stream or memory of another device
/// - memory of the runtime that is not registered with a communicator that has registered some, or memory that is still
///   registered when the communicator is destroyed
/// - floating-point minima and maxima, which drop NaN
///
/// These make it fail on all members: members with different calls, data that changes while it is sent, and calls of
/// several communicators that two members issue in different orders.
extern "C" {

/// Functions of the fake libcuda.so.1.
using FakeCudaSetGpus = void (*)(int count);
/// Makes all streams fail with this error; CUDA_SUCCESS: resets the failure.
using FakeCudaSetError = void (*)(int error);
/// Makes one launch of a kernel by the driver fail: the `number`-th from now on, counted from 1; 0: none.
using FakeCudaFailLaunch = void (*)(int number);
/// Skips one wait for an event: sets Settings::forget.
using FakeCudaForget = void (*)(long number);

/// What was issued since the last call, with a line per group: "rank 0: send 3 to 1, recv 3 from 1".
using FakeNcclLog = const char* (*)();
/// Sets how many polls of a call report that it is still in progress.
using FakeNcclSetPolls = void (*)(int polls);
/// Makes the communicators of this rank fail from now on, as if a remote process had ended; -1: of no rank.
using FakeNcclFail = void (*)(int rank);
/// Makes the next work of this rank fail and end right after the rank was told that nothing has failed.
using FakeNcclFailUnseen = void (*)(int rank);
using FakeNcclMisuses = int (*)();
/// The number of communicators that were neither destroyed nor aborted.
using FakeNcclOpen = int (*)();
/// The number of bytes that are registered with communicators.
using FakeNcclRegistered = unsigned long long (*)();
}
