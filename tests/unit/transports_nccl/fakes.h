#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/cuda/fake_nccl.h"
#include "tests/support/transport_ranks.h"

namespace shardrun::test {

/// A function of the fake libnccl.so.2, or of the fake libcuda.so.1, with which it is linked.
template <class Function>
[[nodiscard]] Function fake(const char* name) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    throw std::runtime_error("the fake libraries are not there: run this by ctest, which sets LD_LIBRARY_PATH");
  }
  return reinterpret_cast<Function>(found);
}

// The name of a driver's function may be a macro that adds a version. It is expanded before it becomes a text.
#define SHARDRUN_TEXT_OF(name) #name
#define SHARDRUN_TEXT(name) SHARDRUN_TEXT_OF(name)
#define SHARDRUN_DRIVER(name) shardrun::test::fake<decltype(&name)>(SHARDRUN_TEXT(name))

/// Sets how the fakes behave while this object exists. At its end all is as it was.
class Fakes {
 public:
  explicit Fakes(int polls = 0) : misuses_before_(fake<FakeNcclMisuses>("fake_nccl_misuses")()) {
    set_polls(polls);
    (void)log();
  }
  Fakes(const Fakes&) = delete;
  Fakes& operator=(const Fakes&) = delete;
  ~Fakes() {
    set_polls(0);
    fail(-1);
    fail_unseen(-1);
  }

  void set_polls(int polls) const { fake<FakeNcclSetPolls>("fake_nccl_set_polls")(polls); }
  [[nodiscard]] std::string log() const { return fake<FakeNcclLog>("fake_nccl_log")(); }
  void fail(int rank) const { fake<FakeNcclFail>("fake_nccl_fail")(rank); }
  void fail_unseen(int rank) const { fake<FakeNcclFailUnseen>("fake_nccl_fail_unseen")(rank); }
  [[nodiscard]] int misuses() const { return fake<FakeNcclMisuses>("fake_nccl_misuses")() - misuses_before_; }
  [[nodiscard]] int open() const { return fake<FakeNcclOpen>("fake_nccl_open")(); }
  [[nodiscard]] std::uint64_t registered() const { return fake<FakeNcclRegistered>("fake_nccl_registered")(); }

 private:
  int misuses_before_;
};

/// While this object exists, the device is current in this thread.
class DeviceUse {
 public:
  explicit DeviceUse(std::uint32_t device) {
    CUcontext context = nullptr;
    (void)SHARDRUN_DRIVER(cuDevicePrimaryCtxRetain)(&context, static_cast<CUdevice>(device));
    (void)SHARDRUN_DRIVER(cuCtxPushCurrent)(context);
  }
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;
  ~DeviceUse() {
    CUcontext context = nullptr;
    (void)SHARDRUN_DRIVER(cuCtxPopCurrent)(&context);
  }
};

/// Memory of a rank's device.
class DeviceMemory {
 public:
  DeviceMemory(std::uint32_t device, std::size_t bytes) : device_(device), bytes_(bytes) {
    const DeviceUse use(device_);
    if (SHARDRUN_DRIVER(cuMemAlloc)(&at_, bytes + 1) != CUDA_SUCCESS) {
      throw std::runtime_error("the fake GPU has no memory");
    }
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() {
    const DeviceUse use(device_);
    (void)SHARDRUN_DRIVER(cuMemFree)(at_);
  }

  [[nodiscard]] unsigned char* data() const { return reinterpret_cast<unsigned char*>(at_); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  void write(std::size_t at, const void* from, std::size_t bytes) const {
    const DeviceUse use(device_);
    (void)SHARDRUN_DRIVER(cuMemcpyHtoD)(at_ + at, from, bytes);
  }
  void read(std::size_t at, void* to, std::size_t bytes) const {
    const DeviceUse use(device_);
    (void)SHARDRUN_DRIVER(cuMemcpyDtoH)(to, at_ + at, bytes);
  }
  [[nodiscard]] sdk::Buffer buffer(std::size_t at, std::size_t bytes) const {
    return {.data = data() + at, .bytes = bytes, .kind = SR_MEMORY_CUDA, .device = device_};
  }
  [[nodiscard]] sdk::Buffer buffer() const { return buffer(0, bytes_); }

 private:
  std::uint32_t device_;
  std::size_t bytes_;
  CUdeviceptr at_ = 0;
};

/// Floats in the memory of a rank's device.
class DeviceFloats : public DeviceMemory {
 public:
  DeviceFloats(const Rank& rank, const std::vector<float>& values)
      : DeviceMemory(rank.rank(), values.size() * sizeof(float)) {
    write(0, values.data(), bytes());
  }
  [[nodiscard]] std::size_t size() const { return bytes() / sizeof(float); }
  [[nodiscard]] std::vector<float> values() const {
    std::vector<float> values(size());
    read(0, values.data(), bytes());
    return values;
  }
};

/// A request for float32, in place if its op has two buffers.
[[nodiscard]] inline sdk::OpSpec device_request(std::uint32_t opcode, std::uint64_t id, const DeviceMemory& data,
                                                std::uint32_t peer = 0) {
  sdk::OpSpec request;
  request.opcode = opcode;
  request.dtype = SR_DTYPE_F32;
  request.reduction = SR_REDUCE_SUM;
  request.peer = peer;
  request.id = id;
  request.count = data.bytes() / sizeof(float);
  request.send = request.recv = data.buffer();
  if (opcode == SR_OP_SEND) {
    request.recv.reset();
  }
  if (opcode == SR_OP_RECV) {
    request.send.reset();
  }
  return request;
}

}  // namespace shardrun::test
