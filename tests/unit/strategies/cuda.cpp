// Strategies with the CUDA kernels, which the processor runs.

#include "core/device/cuda/emulated/emulator.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/unit/strategies/device_choices.h"

using namespace shardrun;
using namespace shardrun::test;

TEST_CASE("every strategy agrees with the reference when it computes with CUDA kernels", "[strategies]") {
  device::cuda::emulated::set_order(device::cuda::emulated::Order::shuffled, 11);
  const std::vector<Choice> choices = choices_of_devices();
  for (std::size_t c = 0; c < choices.size(); c += depth<std::size_t>(1, 3, 6)) {
    check_agrees(plain_gpt(), choices[c], "cuda-emulated");
    check_agrees(full_gpt(), choices[c], "cuda-emulated");
  }
  check_agrees(mlp_of_numbers(), of("zero3", ranks(3)), "cuda-emulated");
  check_agrees(mlp_of_labels(), of("topk", ranks(3), {{"ratio", 1.0}}), "cuda-emulated");
}
