// Failures of work on the device `cuda` over a fake of CUDA.

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_gpu.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using test::OnGpu;

TEST_CASE("cuda: a failure is thrown with the GPU and CUDA's words at every later use", "[device][cuda]") {
  OnGpu at({.fail_at = 20});
  const auto use = [&] {
    for (int i = 0; i < 100; ++i) {
      at.queue->fill(at.view(0, 1), i);
    }
    at.queue->finish();
  };
  for (int time = 0; time < 2; ++time) {
    CHECK_THAT(test::error_of(use), Contains("GPU 0 (Fake H200): ") &&
                                        Contains("an illegal memory access was encountered (cudaErrorIllegalAddress)"));
  }
  CHECK(at.memory->touched_bytes() == 0);
}

TEST_CASE("cuda: calls dropped by a failure are still made, in order", "[device][cuda]") {
  OnGpu at({.fail_at = 20});
  struct Given {
    std::vector<int>* made;
    int number;
  };
  std::vector<int> made;
  std::array<Given, 3> given = {{{&made, 0}, {&made, 1}, {&made, 2}}};
  const std::uint64_t never = at.other->add_gate();
  for (Given& each : given) {
    at.other->call(
        [](void* of) {
          const Given& call = *static_cast<Given*>(of);
          call.made->push_back(call.number);
        },
        &each);
  }
  for (int i = 0; i < 100; ++i) {
    at.queue->fill(at.view(0, 1), i);
  }
  CHECK_THROWS_AS(at.queue->finish(), Error);
  CHECK(made == std::vector<int>{0, 1, 2});
  at.other->open_gate(never);
}

TEST_CASE("cuda: a failure names the unfinished ops and the tensors that they make", "[device][cuda]") {
  OnGpu at({.fail_at = 30});
  const Kernel kernel = {
      .run = [](const KernelCall& call) { cuda::fill_elements(call, call.outputs[0].data, 1, 4, 0); }, .op = "gelu"};
  const graph::Attributes attributes;
  const std::array<std::string, 3> names = {"layer.0/mlp/act", "layer.1/mlp/act", "layer.2/mlp/act"};
  std::vector<std::unique_ptr<const PreparedKernel>> prepared;
  for (const std::string& name : names) {
    prepared.push_back(at.device.prepare(kernel, attributes, {}, {at.view(0, 1)}, {}, name));
  }
  CHECK_THAT(test::error_of([&] {
               for (int i = 0; i < 60; ++i) {
                 at.queue->run(*prepared[static_cast<std::size_t>(i / 20)], false, {});
               }
               at.queue->finish();
             }),
             Contains("(cudaErrorIllegalAddress); the ops that were not done, with the tensors that they make: gelu "
                      "(layer.0/mlp/act), gelu (layer.1/mlp/act) (in a job with one rank, CUDA_LAUNCH_BLOCKING=1 names "
                      "the one that failed; with staged transfers it hangs)"));
}
