// The device `cuda` over a fake of CUDA: its units, and its memory.

#include <memory>

#include "core/base/error.h"
#include "core/device/choice.h"
#include "tests/support/errors.h"
#include "tests/unit/device/on_gpu.h"

using namespace shardrun;
using namespace shardrun::device;
using Catch::Matchers::Contains;
using test::OnGpu;

namespace {

/// Registered before the tests of all devices run, which take the devices from the list.
const RegisterDevice cuda_registered = [] {
  cuda::emulated::set_enqueue(test::fake_cuda::enqueue);
  return RegisterDevice(std::make_unique<const cuda::CudaDevice>());
}();

}  // namespace

TEST_CASE("the units of ranks are chosen by local rank or by a list", "[device][cuda]") {
  test::fake_cuda::set({.gpus = 3});
  const cuda::CudaDevice device;
  CHECK(unit_of(device, parse_device("cuda"), 2, 3) == 2);
  CHECK(unit_of(device, parse_device("cuda:2,0"), 0, 2) == 2);
  CHECK(unit_of(device, parse_device("cuda:1,1,1,1"), 3, 4) == 1);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda"), 0, 4), Error);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda:3"), 0, 1), Error);
  CHECK_THROWS_AS(unit_of(device, parse_device("cuda:0"), 1, 0), Error);
  CHECK_THROWS_AS(parse_device("cuda:-1"), Error);
  CHECK(unit_of(Device::find("cpu"), parse_device("cpu"), 5, 8) == 0);
  test::fake_cuda::set({});
}

TEST_CASE("cuda: the pages of an arena that were written are counted", "[device][cuda]") {
  OnGpu at({}, 10 * 4096 + 512);
  CHECK(at.memory->touched_bytes() == 0);
  at.queue->fill(at.view(1024 + 5, 1), 0);
  at.queue->fill(at.view(10 * 1024 + 127, 1), 0);
  at.queue->finish();
  CHECK(at.memory->touched_bytes() == 2 * 4096);
}

TEST_CASE("cuda: an arena larger than the GPU's memory is refused with what is free", "[device][cuda]") {
  OnGpu at({.memory = 1 << 20});
  try {
    static_cast<void>(at.device.allocate(2 << 20));
    FAIL("more memory than there is was allocated");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::io);
    CHECK_THAT(error.message(), Contains("GPU 0 (Fake H200): allocating 2097152 bytes for the arena, with ") &&
                                    Contains("of 1048576 bytes free") &&
                                    Contains("out of memory (cudaErrorMemoryAllocation)"));
  }
}

TEST_CASE("cuda: an arena is memory that transports can register, if the GPU supports it", "[device][cuda]") {
  for (const int has : {0, 1, 2, 3}) {  // 2: not for network cards; 3: it is refused
    CAPTURE(has);
    OnGpu at({.memory = (1 << 20) + (1 << 15), .virtual_memory = has}, 100'000);
    CHECK(at.memory->bytes() == 100'000);
    at.queue->fill(at.view(24'999, 1), 3);
    CHECK(is_finite(*at.queue, at.view(24'999, 1)));
    CHECK(at.memory->touched_bytes() == 4096);
    // Memory is taken in whole pieces of 64 KiB, or as cudaMalloc rounds.
    CHECK_THROWS_AS(at.device.allocate(1 << 20), Error);
    CHECK_NOTHROW(at.device.allocate((1 << 20) - 131'072));
    const auto allocate_half_piece = [&] { static_cast<void>(at.device.allocate((1 << 20) - 131'072 + 1000)); };
    if (has == 1 || has == 2) {
      CHECK_THAT(test::error_of(allocate_half_piece), Contains("out of memory"));
    } else {
      CHECK_NOTHROW(allocate_half_piece());
    }
  }
}
