#pragma once

/// What tests ask of the fake libnccl.so.2, by dlsym: all of them are C functions. It works between the processes of a
/// machine. FAKE_NCCL_VERSION is the version that it says it has.
/// With FAKE_NCCL_REGISTERED all memory of the runtime must be registered. FAKE_NCCL_KILL=1:200 kills the process of
/// member 1 of any communicator in its 200th launch.
///
/// It counts as misuse, and fails the communicator for: a call without its device, in a blocking communicator, while
/// another is in progress, from two threads at once, or after an abort; a stream of another device; memory that is not
/// the device's; memory of the runtime that is not registered with a communicator that has registered some; memory that
/// is registered when the communicator is destroyed; floating-point minima and maxima, which drop NaN. Members whose
/// calls do not match, what changes while it is sent, and calls of several communicators that two members were given in
/// different orders fail the communicator on all members.
extern "C" {

/// Of the fake libcuda.so.1.
using FakeCudaSetGpus = void (*)(int count);
/// The error with which all streams have ended; CUDA_SUCCESS: they have not.
using FakeCudaSetError = void (*)(int error);
/// The launch of a kernel by the driver that fails, counted from 1 on; 0: none does.
using FakeCudaFailLaunch = void (*)(int number);
/// Which wait for an event is left out; see Settings::forget.
using FakeCudaForget = void (*)(long number);

/// What has been issued since the last call, a line a group: "rank 0: send 3 to 1, recv 3 from 1".
using FakeNcclLog = const char* (*)();
/// How often whoever asks is told that a call is in progress.
using FakeNcclSetPolls = void (*)(int polls);
/// The communicators of this rank have failed from now on, as where a remote process is gone; -1: none.
using FakeNcclFail = void (*)(int rank);
/// The next work of this rank fails and ends right after the rank was told that nothing has failed.
using FakeNcclFailUnseen = void (*)(int rank);
using FakeNcclMisuses = int (*)();
/// Communicators that were neither destroyed nor aborted.
using FakeNcclOpen = int (*)();
/// Bytes that are registered with communicators.
using FakeNcclRegistered = unsigned long long (*)();
}
