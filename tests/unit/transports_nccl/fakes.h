#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_nccl/fakes/nccl.h"

namespace shardrun::test {

/// A function of the fake libnccl.so.2.
template <class Function>
[[nodiscard]] Function fake(const char* name) {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW);
  void* const found = library != nullptr ? dlsym(library, name) : nullptr;
  if (found == nullptr) {
    throw std::runtime_error("the fake libraries are not there: run this by ctest, which sets LD_LIBRARY_PATH");
  }
  return reinterpret_cast<Function>(found);
}

/// A time during which the fakes behave in some way; at its end all is as it was, and nothing was misused.
class Fakes {
 public:
  explicit Fakes(int polls = 0) {
    set_polls(polls);
    (void)log();
  }
  Fakes(const Fakes&) = delete;
  Fakes& operator=(const Fakes&) = delete;
  ~Fakes() {
    set_polls(0);
    fail(-1);
  }

  void set_polls(int polls) const { fake<FakeNcclSetPolls>("fake_nccl_set_polls")(polls); }
  [[nodiscard]] std::string log() const { return fake<FakeNcclLog>("fake_nccl_log")(); }
  void fail(int rank) const { fake<FakeNcclFail>("fake_nccl_fail")(rank); }
  [[nodiscard]] int misuses() const { return fake<FakeNcclMisuses>("fake_nccl_misuses")(); }
  [[nodiscard]] int open() const { return fake<FakeNcclOpen>("fake_nccl_open")(); }
};

/// Memory of this rank's device, as far as the fakes have one.
template <class T>
[[nodiscard]] plugins::HostBuffer device_buffer(const Rank& rank, std::vector<T>& data) {
  plugins::HostBuffer buffer = buffer_of(data);
  buffer.kind = SR_MEMORY_CUDA;
  buffer.device = rank.rank();
  return buffer;
}

/// Of float32, in place where it has two buffers.
[[nodiscard]] inline plugins::OpRequest device_request(const Rank& rank, std::uint32_t opcode, std::uint64_t id,
                                                       std::vector<float>& data, std::uint32_t peer = 0) {
  plugins::OpRequest request = request_of(opcode, id, data.size(), data, peer);
  request.send = request.recv = device_buffer(rank, data);
  if (opcode == SR_OP_SEND) {
    request.recv.reset();
  }
  if (opcode == SR_OP_RECV) {
    request.send.reset();
  }
  return request;
}

}  // namespace shardrun::test
