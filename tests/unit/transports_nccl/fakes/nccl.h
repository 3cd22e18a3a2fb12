#pragma once

/// What tests ask of the fake libnccl.so.2, by dlsym: all of them are C functions.
extern "C" {

/// What has been issued since the last call, a line a group: "rank 0: send 3 to 1, recv 3 from 1".
using FakeNcclLog = const char* (*)();
/// How often whoever asks is told that a call is in progress.
using FakeNcclSetPolls = void (*)(int polls);
/// The communicators of this rank have failed from now on, as where a remote process is gone; -1: none.
using FakeNcclFail = void (*)(int rank);
/// How often what is wrong was done: a call without a device, in a blocking communicator, while another was in progress
/// or after an abort.
using FakeNcclMisuses = int (*)();
/// Communicators that were neither destroyed nor aborted.
using FakeNcclOpen = int (*)();
}
