#include "tests/support/cuda/fake_cudnn_runs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cuda/fake_cudnn_engines.h"

namespace shardrun::test::fake_cudnn {
namespace {

using List = std::vector<double>;

/// Row-major strides of these sizes.
Sizes packed(const Sizes& sizes) {
  Sizes strides(sizes.size(), 1);
  for (std::size_t d = sizes.size() - 1; d > 0; --d) {
    strides[d - 1] = strides[d] * sizes[d];
  }
  return strides;
}

/// The index of an element in each dimension.
Sizes index_of(std::size_t element, const Sizes& sizes) {
  Sizes index(sizes.size());
  auto rest = static_cast<std::int64_t>(element);
  for (std::size_t d = sizes.size(); d-- > 0;) {
    index[d] = rest % sizes[d];
    rest /= sizes[d];
  }
  return index;
}

/// The element of tensor `of` that corresponds to element `index` of a larger tensor. The larger sizes are multiples of
/// the smaller ones, and neighbours share an element.
std::size_t shared(const Sizes& index, const Sizes& whole, const Tensor& of) {
  const Sizes strides = packed(of.sizes);
  std::int64_t element = 0;
  for (std::size_t d = 0; d < index.size(); ++d) {
    element += index[d] / (whole[d] / of.sizes[d]) * strides[d];
  }
  return static_cast<std::size_t>(element);
}

double pointwise(cudnnPointwiseMode_t mode, double x, double b, double t) {
  switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_MAX: return std::max(x, b);
    case CUDNN_POINTWISE_MIN: return std::min(x, b);
    case CUDNN_POINTWISE_EXP: return std::exp(x);
    case CUDNN_POINTWISE_LOG: return std::log(x);
    case CUDNN_POINTWISE_SQRT: return std::sqrt(x);
    case CUDNN_POINTWISE_RSQRT: return 1 / std::sqrt(x);
    case CUDNN_POINTWISE_RECIPROCAL: return 1 / x;
    case CUDNN_POINTWISE_NEG: return -x;
    case CUDNN_POINTWISE_ABS: return std::abs(x);
    case CUDNN_POINTWISE_IDENTITY: return x;
    case CUDNN_POINTWISE_CMP_EQ: return x == b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_NEQ: return x != b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_GT: return x > b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_GE: return x >= b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_LT: return x < b ? 1 : 0;
    case CUDNN_POINTWISE_CMP_LE: return x <= b ? 1 : 0;
    case CUDNN_POINTWISE_LOGICAL_AND: return x != 0 && b != 0 ? 1 : 0;
    case CUDNN_POINTWISE_LOGICAL_OR: return x != 0 || b != 0 ? 1 : 0;
    case CUDNN_POINTWISE_LOGICAL_NOT: return x == 0 ? 1 : 0;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "the fake has no pointwise mode " + std::to_string(mode));
  }
}

List of_pointwise(const Descriptor& operation, const Values& values, const Tensor& y) {
  const Descriptor& how = *operation.of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  List result(y.elements());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const Sizes index = index_of(i, y.sizes);
    if (mode == CUDNN_POINTWISE_GEN_INDEX) {
      result[i] =
          static_cast<double>(index.at(static_cast<std::size_t>(how.one<std::int64_t>(CUDNN_ATTR_POINTWISE_AXIS))));
      continue;
    }
    const auto operand = [&](AttributeName name) {
      if (!operation.has(name)) {
        return 0.0;
      }
      const Tensor tensor(*operation.of(name));
      return values.at(tensor.uid)[shared(index, y.sizes, tensor)];
    };
    result[i] = pointwise(mode, operand(CUDNN_ATTR_OPERATION_POINTWISE_XDESC),
                          operand(CUDNN_ATTR_OPERATION_POINTWISE_BDESC), operand(CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
  }
  return result;
}

List of_matmul(const Descriptor& operation, const Values& values, const Tensor& c) {
  const Tensor a(*operation.of(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  const Tensor b(*operation.of(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  const List& left = values.at(a.uid);
  const List& right = values.at(b.uid);
  const std::size_t rank = c.sizes.size();
  const auto inner = static_cast<std::size_t>(a.sizes[rank - 1]);
  const auto columns = static_cast<std::size_t>(c.sizes[rank - 1]);
  Sizes of_rows = c.sizes;
  of_rows[rank - 1] = inner == 0 ? 1 : a.sizes[rank - 1];
  Sizes of_columns = c.sizes;
  of_columns[rank - 2] = b.sizes[rank - 2];
  List result(c.elements());
  for (std::size_t i = 0; i < result.size(); ++i) {
    Sizes row = index_of(i, c.sizes);
    Sizes column = row;
    row[rank - 1] = 0;
    column[rank - 2] = 0;
    const std::size_t first = shared(row, of_rows, a);
    const std::size_t second = shared(column, of_columns, b);
    double sum = 0;
    for (std::size_t k = 0; k < inner; ++k) {
      sum += left[first + k] * right[second + k * columns];
    }
    result[i] = sum;
  }
  return result;
}

List of_reduction(const Descriptor& operation, const Values& values, const Tensor& y) {
  const Tensor x(*operation.of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
  const auto kind =
      operation.of(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
  require(kind == CUDNN_REDUCE_TENSOR_ADD || kind == CUDNN_REDUCE_TENSOR_MAX, "the fake does not reduce so",
          CUDNN_STATUS_NOT_SUPPORTED);
  const bool is_sum = kind == CUDNN_REDUCE_TENSOR_ADD;
  const List& from = values.at(x.uid);
  List result(y.elements(), is_sum ? 0.0 : -std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < from.size(); ++i) {
    double& to = result[shared(index_of(i, x.sizes), x.sizes, y)];
    to = is_sum ? to + from[i] : std::max(to, from[i]);
  }
  return result;
}

/// Reads the elements in the order of x's strides, and writes them in the order of y's strides.
List of_reshape(const Descriptor& operation, const Values& values, const Tensor& y) {
  const Tensor x(*operation.of(CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
  const auto order_of = [](const Tensor& tensor) {
    const std::vector<std::size_t> offsets = tensor.offsets();
    std::vector<std::size_t> order(offsets.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t i) { return offsets[i]; });
    return order;
  };
  const std::vector<std::size_t> from = order_of(x);
  const std::vector<std::size_t> to = order_of(y);
  List result(to.size());
  for (std::size_t i = 0; i < to.size(); ++i) {
    result[to[i]] = values.at(x.uid)[from.at(i)];
  }
  return result;
}

/// Calls use(element of x, element of w, element of y) for each product that a convolution adds up.
template <class Use>
void for_each_product(const Tensor& x, const Tensor& w, const Tensor& y, const Sliding& sliding, const Use& use) {
  const Sizes of_x = packed(x.sizes);
  const Sizes of_w = packed(w.sizes);
  const std::int64_t outputs_of_group = w.sizes[0] / (x.sizes[1] / w.sizes[1]);
  const std::size_t weights = w.elements() / static_cast<std::size_t>(w.sizes[0]);
  for (std::size_t i = 0; i < y.elements(); ++i) {
    const Sizes at = index_of(i, y.sizes);
    for (std::size_t k = 0; k < weights; ++k) {
      const Sizes tap = index_of(k, w.sizes);  // its index in w, for output channel 0
      std::int64_t from = at[0] * of_x[0] + (at[1] / outputs_of_group * w.sizes[1] + tap[1]) * of_x[1];
      bool is_within = true;
      for (std::size_t d = 0; d + 2 < x.sizes.size(); ++d) {
        const std::int64_t place =
            at[d + 2] * sliding.strides[d] + tap[d + 2] * sliding.dilations[d] - sliding.before[d];
        is_within = is_within && place >= 0 && place < x.sizes[d + 2];
        from += place * of_x[d + 2];
      }
      if (is_within) {
        use(static_cast<std::size_t>(from), static_cast<std::size_t>(at[1] * of_w[0]) + k, i);
      }
    }
  }
}

List of_convolution(const Descriptor& operation, const Values& values) {
  const ConvolutionTensors names(operation);
  const Tensor x(*operation.of(names.x));
  const Tensor w(*operation.of(names.w));
  const Tensor y(*operation.of(names.y));
  const Tensor made(*operation.of(names.made));
  List sums(made.elements());
  const auto add = [&](const List& a, const List& b) {
    for_each_product(x, w, y, Sliding(*operation.of(names.convolution)),
                     [&](std::size_t of_x, std::size_t of_w, std::size_t of_y) {
                       const std::size_t to = made.uid == x.uid ? of_x : made.uid == w.uid ? of_w : of_y;
                       sums[to] += a[made.uid == x.uid ? of_w : of_x] * b[made.uid == y.uid ? of_w : of_y];
                     });
  };
  add(values.at(made.uid == x.uid ? w.uid : x.uid), values.at(made.uid == y.uid ? w.uid : y.uid));
  const auto alpha = static_cast<double>(operation.one<float>(names.alpha, 1));
  const auto beta = static_cast<double>(operation.one<float>(names.beta, 0));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i] = alpha * sums[i] + (beta == 0 ? 0 : beta * values.at(made.uid)[i]);
  }
  return sums;
}

List result_of(const Descriptor& operation, const Values& values, const Tensor& made) {
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return of_pointwise(operation, values, made);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return of_matmul(operation, values, made);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: return of_reduction(operation, values, made);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR: return of_reshape(operation, values, made);
    default: return of_convolution(operation, values);
  }
}

bool is_aligned(const void* memory, std::int64_t to) {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(to) == 0;
}

}  // namespace

double without_bits(double value, unsigned count) {
  const auto all = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  if (count == 0 || (all & 0x7F800000U) == 0x7F800000U) {
    return static_cast<double>(std::bit_cast<float>(all));  // NaN or infinite
  }
  const std::uint32_t last = (all >> count) & 1U;
  const std::uint32_t kept = (all + (1U << (count - 1)) - 1U + last) >> count << count;
  return static_cast<double>(std::bit_cast<float>(kept));
}

double rounded(double value, cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16: return without_bits(value, 16);
    case CUDNN_DATA_INT32: return std::trunc(value);
    case CUDNN_DATA_BOOLEAN: return value != 0 ? 1 : 0;
    default: return static_cast<double>(static_cast<float>(value));
  }
}

std::vector<double> load(const Tensor& tensor, const std::byte* data) {
  std::vector<double> values;
  values.reserve(tensor.elements());
  for (const std::size_t offset : tensor.offsets()) {
    std::array<std::byte, 4> bytes = {};
    const std::size_t size = tensor.element_bytes();
    // bfloat16 is the upper half of a float32.
    std::memcpy(bytes.data() + (tensor.type == CUDNN_DATA_BFLOAT16 ? 2 : 0), data + offset * size, size);
    const bool is_integer = tensor.type == CUDNN_DATA_INT32 || tensor.type == CUDNN_DATA_BOOLEAN;
    values.push_back(is_integer ? static_cast<double>(std::bit_cast<std::int32_t>(bytes))
                                : static_cast<double>(std::bit_cast<float>(bytes)));
  }
  return values;
}

void store(const Tensor& tensor, const std::vector<double>& values, std::byte* data) {
  const std::vector<std::size_t> offsets = tensor.offsets();
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const bool is_integer = tensor.type == CUDNN_DATA_INT32 || tensor.type == CUDNN_DATA_BOOLEAN;
    const auto bytes = is_integer ? std::bit_cast<std::array<std::byte, 4>>(static_cast<std::int32_t>(values[i]))
                                  : std::bit_cast<std::array<std::byte, 4>>(static_cast<float>(values[i]));
    const std::size_t size = tensor.element_bytes();
    std::memcpy(data + offsets[i] * size, bytes.data() + (tensor.type == CUDNN_DATA_BFLOAT16 ? 2 : 0), size);
  }
}

void compute(const Descriptor& operation, Values& values) {
  const Tensor made(*tensors_of(operation).made.front());
  List result = result_of(operation, values, made);
  for (double& each : result) {
    each = rounded(each, made.type);
  }
  values[made.uid] = std::move(result);
}

Run checked_run(const fake_cuda::Lent& lent, const std::shared_ptr<const Descriptor>& plan_descriptor,
                const Descriptor& pack) {
  const Plan plan(*plan_descriptor);
  Run run{.plan = plan_descriptor, .memory = {}, .passed = {}};
  const auto uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.all<std::byte*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  for (const auto& [uid, tensor] : tensors_in_memory(plan.graph)) {
    const auto at = std::ranges::find(uids, uid);
    const std::string name = "tensor " + std::to_string(uid);
    require(at != uids.end(), name + " has no memory");
    std::byte* const memory = pointers[static_cast<std::size_t>(at - uids.begin())];
    require(memory != nullptr, name + " has no memory", CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    if (tensor.is_by_value) {
      run.passed[uid] = load(tensor, memory);
      continue;
    }
    require(is_aligned(memory, tensor.alignment), name + " is not aligned as was promised",
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    require(lent.is_on_gpu(memory, tensor.bytes()), name + " is not on the GPU as a whole");
    run.memory[uid] = memory;
  }
  require(run.memory.size() + run.passed.size() == uids.size(), "memory is given for a tensor that there is not");
  const std::int64_t bytes = plan.workspace();
  run.workspace = pack.one<std::byte*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  require(lent.is_on_gpu(run.workspace, static_cast<std::size_t>(bytes)) && is_aligned(run.workspace, 256),
          "the workspace is not on the GPU as a whole, or not aligned to 256 bytes");
  return run;
}

void execute(const Run& run) {
  const Plan plan(*run.plan);
  std::memset(run.workspace, static_cast<int>(run.turn % 251), static_cast<std::size_t>(plan.workspace()));
  const std::map<std::int64_t, Tensor> tensors = tensors_in_memory(plan.graph);
  std::vector<Reference> left(operations_of(plan.graph).begin(), operations_of(plan.graph).end());
  std::set<std::int64_t> to_make;
  for (const Reference& each : left) {
    to_make.insert(Tensor(*tensors_of(*each).made.front()).uid);
  }
  Values values = run.passed;
  for (const auto& [uid, memory] : run.memory) {
    // The engine rounds operands to fewer bits: TF32 has 13 fewer than float32, FP8 20.
    const unsigned dropped = to_make.contains(uid) ? 0 : plan.engine.dropped_bits;
    std::vector<double>& loaded = values[uid] = load(tensors.at(uid), memory);
    std::ranges::transform(loaded, loaded.begin(), [&](double each) { return without_bits(each, dropped); });
  }
  // Operations need not be listed after those that make their operands.
  while (!left.empty()) {
    const auto next = std::ranges::find_if(left, [&](const Reference& each) {
      return std::ranges::none_of(tensors_of(*each).read,
                                  [&](const Reference& read) { return to_make.contains(Tensor(*read).uid); });
    });
    if (next == left.end()) {
      std::fprintf(stderr, "fake cuDNN: the operations of a graph wait for each other\n");
      std::abort();
    }
    const Tensor made(*tensors_of(**next).made.front());
    // A product that another operation reads from memory is a sum to which the blocks of an engine add.
    const bool adds = (*next)->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR && !made.is_virtual &&
                      std::ranges::any_of(left, [&](const Reference& each) {
                        return std::ranges::any_of(tensors_of(*each).read, [&](const Reference& read) {
                          return Tensor(*read).uid == made.uid;
                        });
                      });
    const std::vector<double> before = adds ? values[made.uid] : std::vector<double>();
    compute(**next, values);
    if (adds) {
      std::ranges::transform(values[made.uid], before, values[made.uid].begin(), std::plus<>());
    }
    to_make.erase(made.uid);
    if (!made.is_virtual) {
      std::vector<double> stored = values[made.uid];
      if (!plan.engine.is_reproducible) {
        stored.front() += static_cast<double>(run.turn % 7 + 1);
      }
      store(made, stored, run.memory.at(made.uid));
    }
    left.erase(next);
  }
}

}  // namespace shardrun::test::fake_cudnn
