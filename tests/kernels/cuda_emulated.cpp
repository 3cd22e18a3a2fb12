// The CUDA kernels, run by the emulator, against the float64 reference: over all cases of all ops, in float32 and
// bfloat16, with the threads of a block in several orders.

#include <iterator>

#include "core/device/cuda/emulated/emulator.h"
#include "tests/kernels/cuda_checks.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;
using device::cuda::emulated::Order;

namespace {

const device::Device& emulated() { return device::Device::find("cuda-emulated"); }

// A sanitizer takes ten times as long, and looks for accesses that no order changes.
#if defined(SHARDRUN_SANITIZED)
constexpr Order orders[] = {Order::shuffled};
#else
constexpr Order orders[] = {Order::forward, Order::reversed, Order::shuffled};
#endif

/// A turn is an order of the threads.
class EmulatorRunner final : public KernelRunner {
 public:
  [[nodiscard]] std::size_t turns() const override { return std::size(orders); }
  [[nodiscard]] std::vector<Tensor> run(const Prepared& prepared, const Manner& manner, std::size_t turn) override {
    device::cuda::emulated::set_order(orders[turn], 7);
    return test::run(emulated(), prepared, manner);
  }
};

}  // namespace

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
