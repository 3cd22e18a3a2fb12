// Convolutions by the installed cuDNN, if there is one: it finds an engine for each that fits into the planned scratch.
// It computes nothing, because that needs a GPU.

#include <string>
#include <vector>

#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/cudnn_plans.h"
#include "core/graph/sliding.h"
#include "tests/unit/device/true_cudnn.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using graph::DType;
using test::Shape;
using test::type_of;

namespace {

struct Convolved {
  Shape x;
  Shape w;
  Shape strides;
  Shape padding;
  Shape dilation;
  std::int64_t groups = 1;
};

/// How the op is computed if operands and result have these types.
ConvolutionSteps steps_of(const std::string& op, const Convolved& of, DType operands, DType result) {
  Shape y = {of.x[0], of.w[0]};
  const Shape kernel(of.w.begin() + 2, of.w.end());
  graph::Attributes attributes = {
      {"strides", of.strides}, {"padding", of.padding}, {"dilation", of.dilation}, {"groups", of.groups}};
  const std::vector<graph::Sliding> slidings = graph::sliding_of(attributes, kernel);
  for (std::size_t d = 0; d < slidings.size(); ++d) {
    y.push_back(slidings[d].result_size(of.x[2 + d]));
  }
  const bool is_of_input = op == "conv_gradient_input";
  const bool is_of_weights = op == "conv_gradient_weights";
  const std::vector<graph::TensorType> inputs = {type_of(op == "conv" ? of.x : y, operands),
                                                 type_of(is_of_weights ? of.x : of.w, operands)};
  const std::vector<graph::TensorType> outputs = {type_of(is_of_input ? of.x : is_of_weights ? of.w : y, result)};
  return convolution_steps(op, {attributes, inputs, outputs}).value();
}

/// Calls use(steps, whether it adds) for all ops, types and sums.
template <class Use>
void for_each_kind(const Convolved& of, const Use& use) {
  for (const char* const op : {"conv", "conv_gradient_input", "conv_gradient_weights"}) {
    const bool is_of_weights = op == std::string("conv_gradient_weights");
    for (const auto& [operands, result] :
         {std::pair(DType::f32, DType::f32), std::pair(DType::bf16, DType::bf16), std::pair(DType::bf16, DType::f32)}) {
      if (operands == result || is_of_weights) {
        const ConvolutionSteps steps = steps_of(op, of, operands, result);
        for (const bool adds : {false, true}) {
          if (!adds || is_of_weights) {
            INFO(text_of(steps.whole) << (adds ? ", added" : ""));
            use(steps, adds);
          }
        }
      }
    }
  }
}

std::shared_ptr<const CudnnPlan> plan_of(const CudnnTarget& target, const ConvolutionSteps& steps, bool adds,
                                         std::size_t workspace_bytes, std::int64_t alignment = 16) {
  return find_convolution_plan(target, steps.part(steps.images), adds, {alignment, alignment, alignment},
                               workspace_bytes);
}

}  // namespace

TEST_CASE("the installed cuDNN has an engine for every convolution, with the planned workspace", "[unit]") {
  const auto target = test::true_cudnn();
  if (target == nullptr) {
    return;
  }
  for (const Convolved& of :
       {Convolved{{2, 3, 7}, {2, 3, 3}, {1}, {1, 1}, {1}}, Convolved{{2, 2, 11}, {3, 2, 3}, {2}, {0, 1}, {2}},
        Convolved{{1, 4, 9}, {6, 2, 2}, {3}, {1, 0}, {1}, 2},
        Convolved{{1, 2, 9, 7}, {2, 2, 3, 2}, {2, 3}, {1, 1, 0, 0}, {1, 1}},
        Convolved{{1, 2, 7, 7}, {2, 2, 1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
        Convolved{{2, 4, 4, 5}, {4, 1, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 4},
        Convolved{{1, 6, 5, 4}, {4, 3, 2, 2}, {2, 1}, {0, 0, 1, 1}, {1, 2}, 2},
        Convolved{{2, 3, 37, 29}, {17, 3, 7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
        Convolved{{3, 33, 13, 15}, {19, 33, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}}}) {
    for (const std::int64_t alignment : {4, 16}) {
      for_each_kind(of, [&](const ConvolutionSteps& steps, bool adds) {
        const auto plan = plan_of(*target, steps, adds, steps.workspace_bytes, alignment);
        REQUIRE(plan != nullptr);
        CHECK(plan->workspace_bytes() <= steps.workspace_bytes);
      });
    }
  }
}

TEST_CASE("the planned workspace suffices for the engine that cuDNN prefers with unlimited workspace", "[unit]") {
  const auto target = test::true_cudnn();
  if (target == nullptr) {
    return;
  }
  // Convolutions of ResNet-50.
  for (const Convolved& of : {Convolved{{64, 3, 224, 224}, {64, 3, 7, 7}, {2, 2}, {3, 3, 3, 3}, {1, 1}},
                              Convolved{{64, 64, 56, 56}, {64, 64, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
                              Convolved{{64, 64, 56, 56}, {256, 64, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
                              Convolved{{64, 256, 56, 56}, {512, 256, 1, 1}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
                              Convolved{{64, 128, 56, 56}, {128, 128, 3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
                              Convolved{{64, 256, 14, 14}, {256, 256, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
                              Convolved{{64, 512, 7, 7}, {512, 512, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}},
                              Convolved{{64, 512, 7, 7}, {2048, 512, 1, 1}, {1, 1}, {0, 0, 0, 0}, {1, 1}}}) {
    for_each_kind(of, [&](const ConvolutionSteps& steps, bool adds) {
      const auto plan = plan_of(*target, steps, adds, steps.workspace_bytes);
      REQUIRE(plan != nullptr);
      CHECK(plan->workspace_bytes() == plan_of(*target, steps, adds, std::size_t{1} << 40)->workspace_bytes());
    });
  }
}
