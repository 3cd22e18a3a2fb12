#include "tests/kernels/typed.h"

namespace shardrun::test {

using graph::DType;

Prepared prepare_as(Case test, const Typing& typing) {
  for (std::size_t i = 0; i < test.operands.size(); ++i) {
    if (test.operands[i].type.dtype == DType::f32 && typing.operand(i)) {
      test.operands[i].type.dtype = DType::bf16;
    }
  }
  Prepared prepared = prepare(test);
  for (std::size_t o = 0; o < prepared.outputs.size(); ++o) {
    DType& dtype = prepared.outputs[o].type.dtype;
    dtype = !graph::is_real(dtype) ? dtype : typing.result(o) ? DType::bf16 : DType::f32;
  }
  return prepared;
}

std::vector<Tensor> unrounded(Prepared prepared) {
  for (Tensor& output : prepared.outputs) {
    output.type.dtype = graph::is_real(output.type.dtype) ? DType::f32 : output.type.dtype;
  }
  return run(test::reference(), prepared);  // other files of the unity have one of their own
}

namespace {

Tolerance tolerance_of(const Tensor& result, Tolerance of_float) {
  of_float.of_element += result.type.dtype == DType::bf16 ? 1.01 * 0x1p-8 : 0;
  return of_float;
}

}  // namespace

std::vector<Tensor> expected_sums(Prepared& prepared) {
  Tensor& result = prepared.outputs[0];
  Random(2).fill_normal(result, 0, 1);
  device::round_elements(result.type.dtype, result.values);
  std::vector<Tensor> expected = unrounded(prepared);
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    expected[0].values[i] += result.values[i];
  }
  return expected;
}

std::string typed_difference(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                             Tolerance of_float) {
  for (std::size_t o = 0; o < found.size(); ++o) {
    const std::string text = difference(found[o], expected[o], tolerance_of(found[o], of_float));
    if (!text.empty()) {
      return "result " + std::to_string(o) + ": " + text;
    }
  }
  return {};
}

bool normalises_one_element(const Case& test) {
  return test.op == "layer_norm_gradient_gain" && test.operands[0].type.shape.back() == 1;
}

Prepared without_indices(const Prepared& whole, graph::FactorId factor) {
  Prepared part = whole;
  const auto cut = [&](std::vector<Tensor>& tensors, const std::vector<std::vector<graph::FactorId>>& dims) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      for (std::size_t d = 0; d < dims[i].size(); ++d) {
        const std::int64_t end = tensors[i].type.shape[d];
        tensors[i] = dims[i][d] == factor ? slice(tensors[i], d, end, end) : tensors[i];
      }
    }
  };
  cut(part.inputs, whole.rule.inputs);
  cut(part.outputs, whole.rule.outputs);
  return part;
}

}  // namespace shardrun::test
