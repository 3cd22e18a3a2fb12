// The step that a failure of device `cuda` names, over a fake of CUDA.

#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>

#include "core/device/cuda/copies.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/memory.h"
#include "core/device/queue.h"
#include "core/device/threads.h"
#include "tests/support/catch.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;

namespace {

constexpr int runs = 20;  ///< of each step

/// The error of a queue that is given three steps. The kernel with this number, counted from 0, fails.
std::string error_of_run(int failing) {
  test::fake_cuda::set({});
  const cuda::CudaDevice device;
  Threads threads(1);
  const std::shared_ptr<const Memory> memory = device.allocate(1 << 16);
  const TensorView one{.data = memory->data(), .rank = 1, .shape = {1}, .global = {1}};
  const Kernel kernel = {
      .run = [](const KernelCall& call) { cuda::fill_elements(call, call.outputs[0].data, 1, 4, 0); }, .op = "gelu"};
  const graph::Attributes attributes;
  const std::array<std::string, 3> names = {"made in step 1", "made in step 2", "made in step 3"};
  std::string error;
  {
    const std::unique_ptr<Queue> queue = device.open_queue(threads);
    error = test::error_of([&] {
      for (std::size_t step = 0; step < names.size(); ++step) {
        queue->begin_step(static_cast<std::int64_t>(step));
        const auto prepared = device.prepare(kernel, attributes, {}, {one}, {}, names[step]);
        for (int i = 0; i < runs; ++i) {
          if (static_cast<int>(step) * runs + i == failing) {
            test::fake_cuda::enqueue(queue->native(), [] { throw Error(ErrorCode::internal, "planted"); });
          }
          queue->run(*prepared, false, {});
        }
      }
      queue->finish();
    });
  }
  test::fake_cuda::set({});
  return error;
}

}  // namespace

TEST_CASE("cuda: a failure names the step of the kernel that failed, even if later steps were queued",
          "[device][cuda]") {
  for (int failing = 0; failing < 3 * runs; ++failing) {
    CAPTURE(failing);
    const int step = failing / runs + 1;
    CHECK_THAT(error_of_run(failing),
               Contains(fmt::format("; the ops of step {0} that were not done, with the tensors that they make: gelu "
                                    "(made in step {0})",
                                    step)) &&
                   !Contains("made in step " + std::to_string(step % 3 + 1)) &&
                   !Contains("made in step " + std::to_string((step + 1) % 3 + 1)));
  }
}
