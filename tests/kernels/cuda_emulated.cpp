// The CUDA kernels, run by the emulator, against the float64 reference: over all cases of all ops, in float32 and
// bfloat16, with the threads of a block in several orders.

#include <algorithm>
#include <iterator>

#include "core/device/cuda/emulated/emulator.h"
#include "tests/kernels/cuda_checks.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"

using namespace shardrun;
using namespace shardrun::test;
using device::cuda::emulated::Order;

namespace {

const device::Device& emulated() { return device::Device::find("cuda-emulated"); }

/// A shuffled order has about half of the pairs of threads in each order. In the last two, any pair runs in both.
constexpr Order orders[] = {Order::shuffled, Order::forward, Order::reversed};

/// A turn is an order of the threads.
class EmulatorRunner final : public KernelRunner {
 public:
  [[nodiscard]] std::size_t turns() const override { return depth<std::size_t>(std::size(orders), 1, 1); }
  [[nodiscard]] std::vector<Tensor> run(const Prepared& prepared, const Manner& manner, std::size_t turn) override {
    device::cuda::emulated::set_order(orders[turn], 7);
    return test::run(emulated(), prepared, manner);
  }
};

}  // namespace

TEST_CASE("products by tensor cores may be off by more the longer their sums are", "[kernels]") {
  const graph::Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  const Case product = {"matmul", attributes, {normal({7, 1500}), normal({1500, 9})}};
  CHECK(lost_by_tensor_cores(prepare_as(product, all_bfloat16), true) == 1500 * 0x1p-29);
  CHECK(lost_by_tensor_cores(prepare_as(product, all_float32), true) == 0);
  CHECK(lost_by_tensor_cores(prepare_as({"add", {}, {normal({7, 9}), normal({7, 9})}}, all_bfloat16), true) == 0);
  const auto cases = cases_of("conv_gradient_weights");
  const auto longest = std::ranges::find_if(cases, [](const Case& each) {
    return each.operands[1].type.shape == Shape{3, 33, 13, 15};  // an H200 was off by 4.51e-6 here
  });
  REQUIRE(longest != cases.end());
  CHECK(lost_by_tensor_cores(prepare_as(*longest, all_float32), true) == 3 * 13 * 15 * 6 * 0x1p-29);
  CHECK(lost_by_tensor_cores(prepare_as(*longest, all_float32), false) == 0);
  CHECK(lost_by_tensor_cores(prepare_as(*longest, all_bfloat16), true) == 3 * 13 * 15 * 0x1p-29);
}

TEST_CASE("every op has a CUDA kernel", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    CHECK_NOTHROW(emulated().kernel(op->name));
  }
}

TEST_CASE("CUDA kernels, run by the emulator, pass all checks", "[kernels]") {
  EmulatorRunner runner;
  for (const KernelCheck& check : cuda_checks()) {
    for (const graph::Op* op : graph::all_ops()) {
      DYNAMIC_SECTION(op->name << " " << check.name) {
        for (const TypedCase& typed : cuda_cases(op->name)) {
          INFO(to_string(typed));
          CHECK(check.check(typed, prepare_as(typed.test, typed.typing), runner) == "");
        }
      }
    }
  }
}
