#include "tests/support/cuda/fake_cudnn_descriptors.h"

#include <algorithm>
#include <bit>
#include <set>

namespace shardrun::test::fake_cudnn {
namespace {

struct Rule {
  AttributeName name;
  AttributeType type;
  bool is_needed = true;
  std::int64_t most = 1;                                        ///< the largest number of elements
  DescriptorType descriptor = CUDNN_BACKEND_TENSOR_DESCRIPTOR;  ///< for an attribute that is a descriptor: its type
};

constexpr std::int64_t most_dimensions = CUDNN_DIM_MAX;
constexpr std::int64_t most_entries = 4096;

constexpr Rule tensor(AttributeName name, bool is_needed = true) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, is_needed};
}
constexpr Rule part(AttributeName name, DescriptorType descriptor, bool is_needed = true, std::int64_t most = 1) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, is_needed, most, descriptor};
}
constexpr Rule sizes(AttributeName name) { return {name, CUDNN_TYPE_INT64, true, most_dimensions}; }

const std::map<DescriptorType, std::vector<Rule>>& all_rules() {
  static const std::map<DescriptorType, std::vector<Rule>> rules = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {{CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64},
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE},
        sizes(CUDNN_ATTR_TENSOR_DIMENSIONS),
        sizes(CUDNN_ATTR_TENSOR_STRIDES),
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, false},
        {CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, false}}},
      {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
       {{CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64},
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE},
        sizes(CUDNN_ATTR_CONVOLUTION_DILATIONS),
        sizes(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
        sizes(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
        sizes(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       {tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y),
        part(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, false},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, false}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       {tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY),
        part(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, false},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, false}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       {tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW),
        tensor(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY),
        part(CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, false},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, false}}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, false}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_XDESC), tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, false),
        tensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, false), tensor(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR,
       {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, false}}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {part(CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_MATMUL_ADESC), tensor(CUDNN_ATTR_OPERATION_MATMUL_BDESC),
        tensor(CUDNN_ATTR_OPERATION_MATMUL_CDESC)}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE},
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE},
        {CUDNN_ATTR_REDUCTION_IS_DETERMINISTIC, CUDNN_TYPE_BOOLEAN, false}}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {part(CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR),
        tensor(CUDNN_ATTR_OPERATION_REDUCTION_XDESC), tensor(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {tensor(CUDNN_ATTR_OPERATION_RESHAPE_XDESC), tensor(CUDNN_ATTR_OPERATION_RESHAPE_YDESC)}},
      {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
       {{CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, false},
        {CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, false},
        {CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, false, most_entries}}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, false},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, true, most_entries}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE},
        part(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, false)}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
       {part(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
        {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
        part(CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, false)}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, {part(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR)}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, false},
        part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
        part(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, false)}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, true, most_entries},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, true, most_entries},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, false}}}};
  return rules;
}

const Rule& rule_of(DescriptorType of, AttributeName name) {
  const auto rules = all_rules().find(of);
  require(rules != all_rules().end(), "the fake has no descriptors of type " + std::to_string(of),
          CUDNN_STATUS_NOT_SUPPORTED);
  const auto found = std::ranges::find(rules->second, name, &Rule::name);
  require(found != rules->second.end(),
          "descriptors of type " + std::to_string(of) + " have no attribute " + std::to_string(name));
  return *found;
}

void check_tensor(const Descriptor& descriptor) {
  const Tensor of(descriptor);
  require(!of.sizes.empty() && of.sizes.size() == of.strides.size(), "a tensor has as many strides as sizes");
  require(std::ranges::all_of(of.sizes, [](std::int64_t size) { return size > 0; }), "a tensor's size is below 1");
  require(std::ranges::all_of(of.strides, [](std::int64_t stride) { return stride >= 0; }), "a stride is below 0");
  require(of.alignment > 0 && std::has_single_bit(static_cast<std::uint64_t>(of.alignment)) &&
              static_cast<std::uint64_t>(of.alignment) % of.element_bytes() == 0,
          "a tensor's alignment is no power of two, or less than an element");
  require(!(of.is_virtual && of.is_by_value), "a virtual tensor is passed by value");
}

void check_convolution(const Descriptor& operation) {
  const ConvolutionTensors names(operation);
  const Tensor x(*operation.of(names.x));
  const Tensor w(*operation.of(names.w));
  const Tensor y(*operation.of(names.y));
  const Sliding sliding(*operation.of(names.convolution));
  const std::size_t rank = sliding.strides.size() + 2;
  require(rank >= 4, "a convolution slides along at least two dimensions", CUDNN_STATUS_NOT_SUPPORTED);
  require(x.sizes.size() == rank && w.sizes.size() == rank && y.sizes.size() == rank,
          "the tensors of a convolution have other ranks");
  require(x.type == w.type && x.type == y.type, "the tensors of a convolution have several types",
          CUDNN_STATUS_NOT_SUPPORTED);
  require(x.sizes[0] == y.sizes[0] && w.sizes[0] == y.sizes[1] && x.sizes[1] % w.sizes[1] == 0 &&
              w.sizes[0] % (x.sizes[1] / w.sizes[1]) == 0,
          "batch or channels of a convolution do not fit");
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    const std::int64_t reach = (w.sizes[d + 2] - 1) * sliding.dilations[d] + 1;
    const std::int64_t held = x.sizes[d + 2] + sliding.before[d] + sliding.after[d];
    require(held >= reach && y.sizes[d + 2] == (held - reach) / sliding.strides[d] + 1,
            "a size of a convolution's result is not what its windows give");
  }
}

/// Whether b can be broadcast to `whole`: in each dimension the sizes are equal, or b's is 1.
bool is_broadcast(const Tensor& b, const Tensor& whole) {
  if (b.sizes.size() != whole.sizes.size()) {
    return false;
  }
  for (std::size_t d = 0; d < b.sizes.size(); ++d) {
    if (b.sizes[d] != 1 && b.sizes[d] != whole.sizes[d]) {
      return false;
    }
  }
  return true;
}

void check_pointwise(const Descriptor& operation) {
  const Tensor y(*operation.of(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  for (const AttributeName name : {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                   CUDNN_ATTR_OPERATION_POINTWISE_TDESC}) {
    require(!operation.has(name) || is_broadcast(Tensor(*operation.of(name)), y),
            "an operand of a pointwise operation does not fit its result");
  }
  const Descriptor& pointwise = *operation.of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  const auto mode = pointwise.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  require(mode != CUDNN_POINTWISE_GEN_INDEX || pointwise.has(CUDNN_ATTR_POINTWISE_AXIS), "an index has no axis");
  require((mode == CUDNN_POINTWISE_BINARY_SELECT) == operation.has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC),
          "a selection, and only that, has a third operand");
}

void check_matmul(const Descriptor& operation) {
  const Tensor a(*operation.of(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  const Tensor b(*operation.of(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  const Tensor c(*operation.of(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  const std::size_t rank = c.sizes.size();
  require(rank >= 3 && a.sizes.size() == rank && b.sizes.size() == rank, "the ranks of a product differ");
  require(a.sizes[rank - 2] == c.sizes[rank - 2] && a.sizes[rank - 1] == b.sizes[rank - 2] &&
              b.sizes[rank - 1] == c.sizes[rank - 1],
          "the matrices of a product do not fit");
  for (std::size_t d = 0; d + 2 < rank; ++d) {
    require(c.sizes[d] % a.sizes[d] == 0 && c.sizes[d] % b.sizes[d] == 0, "the batches of a product do not fit");
  }
}

void check_graph(const Descriptor& graph) {
  std::map<std::int64_t, Tensor> known;
  std::set<std::int64_t> made;
  std::set<std::int64_t> read;
  for (const Reference& operation : graph.attributes.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).descriptors) {
    const OperationTensors tensors = tensors_of(*operation);
    for (const auto* const each : {&tensors.read, &tensors.made}) {
      for (const Reference& descriptor : *each) {
        const Tensor tensor(*descriptor);
        const Tensor& first = known.try_emplace(tensor.uid, tensor).first->second;
        require(first.sizes == tensor.sizes && first.strides == tensor.strides && first.type == tensor.type &&
                    first.is_virtual == tensor.is_virtual,
                "two tensors of a graph have one number");
        require(each == &tensors.read || made.insert(tensor.uid).second, "a tensor is made twice");
      }
    }
    for (const Reference& descriptor : tensors.read) {
      read.insert(Tensor(*descriptor).uid);
    }
  }
  for (const auto& [uid, tensor] : known) {
    require(!tensor.is_virtual || (made.contains(uid) && read.contains(uid)),
            "a virtual tensor is not made, or not read");
    require(!tensor.is_by_value || !made.contains(uid), "a value that is passed is made");
  }
}

void check_variants(const Descriptor& pack) {
  Sizes uids = pack.all<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  require(pack.attributes.at(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).count == static_cast<std::int64_t>(uids.size()),
          "a variant pack has as many pointers as numbers of tensors");
  std::ranges::sort(uids);
  require(std::ranges::adjacent_find(uids) == uids.end(), "a variant pack has a tensor twice",
          CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
}

}  // namespace

std::size_t bytes_of(AttributeType type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE: return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    default: return 4;
  }
}

void require_attribute(DescriptorType of, AttributeName name, AttributeType type, std::int64_t count) {
  const Rule& rule = rule_of(of, name);
  require(type == rule.type, "attribute " + std::to_string(name) + " has another type",
          CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  require(count >= 1 && count <= rule.most, "attribute " + std::to_string(name) + " has another number of elements",
          CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND);
}

void check(const Descriptor& descriptor) {
  for (const Rule& rule : all_rules().at(descriptor.type)) {
    require(!rule.is_needed || descriptor.has(rule.name), "attribute " + std::to_string(rule.name) + " is not set");
    if (rule.type == CUDNN_TYPE_BACKEND_DESCRIPTOR && descriptor.has(rule.name)) {
      for (const Reference& each : descriptor.attributes.at(rule.name).descriptors) {
        require(each->type == rule.descriptor || rule.name == CUDNN_ATTR_OPERATIONGRAPH_OPS,
                "attribute " + std::to_string(rule.name) + " is a descriptor of another type",
                CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
      }
    }
  }
  switch (descriptor.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: return check_tensor(descriptor);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: return static_cast<void>(Sliding(descriptor));
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR: return check_convolution(descriptor);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: return check_pointwise(descriptor);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: return check_matmul(descriptor);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      // A reduction combines neighbouring elements.
      return require(std::ranges::equal(Tensor(*descriptor.of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC)).sizes,
                                        Tensor(*descriptor.of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)).sizes,
                                        [](std::int64_t y, std::int64_t x) { return y > 0 && x % y == 0; }),
                     "the result of a reduction does not fit");
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: return check_graph(descriptor);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: return check_variants(descriptor);
    default: return;
  }
}

Tensor::Tensor(const Descriptor& descriptor)
    : uid(descriptor.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
      type(descriptor.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
      sizes(descriptor.all<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS)),
      strides(descriptor.all<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES)),
      alignment(descriptor.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)),
      is_virtual(descriptor.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)),
      is_by_value(descriptor.one<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE, false)) {}

std::size_t Tensor::elements() const {
  std::size_t count = 1;
  for (const std::int64_t size : sizes) {
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

std::size_t Tensor::element_bytes() const {
  switch (type) {
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32: return 4;
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_BOOLEAN: return 1;
    default: throw Refusal(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the fake has no tensors of this type");
  }
}

std::size_t Tensor::bytes() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    last += (sizes[d] - 1) * strides[d];
  }
  return (static_cast<std::size_t>(last) + 1) * element_bytes();
}

std::vector<std::size_t> Tensor::offsets() const {
  std::vector<std::size_t> all = {0};
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::vector<std::size_t> next;
    next.reserve(all.size() * static_cast<std::size_t>(sizes[d]));
    for (const std::size_t begin : all) {
      for (std::int64_t i = 0; i < sizes[d]; ++i) {
        next.push_back(begin + static_cast<std::size_t>(i * strides[d]));
      }
    }
    all = std::move(next);
  }
  return all;
}

Sliding::Sliding(const Descriptor& convolution)
    : strides(convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)),
      dilations(convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS)),
      before(convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)),
      after(convolution.all<std::int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS)) {
  const auto rank = static_cast<std::size_t>(convolution.one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
  require(strides.size() == rank && dilations.size() == rank && before.size() == rank && after.size() == rank,
          "a convolution's attributes have an entry for each of its dimensions");
  require(std::ranges::min(strides) > 0 && std::ranges::min(dilations) > 0 && std::ranges::min(before) >= 0 &&
              std::ranges::min(after) >= 0,
          "a stride, a dilation or a padding of a convolution is too small");
  require(convolution.one<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == CUDNN_DATA_FLOAT &&
              convolution.one<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CROSS_CORRELATION,
          "the fake has cross-correlations with sums in float32 only", CUDNN_STATUS_NOT_SUPPORTED);
}

ConvolutionTensors::ConvolutionTensors(const Descriptor& operation) {
  if (operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
    x = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X;
    w = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W;
    y = made = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y;
    convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC;
    alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA;
    beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA;
  } else if (operation.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
    x = made = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX;
    w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W;
    y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY;
    convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC;
    alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA;
    beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA;
  } else {
    x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X;
    w = made = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW;
    y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY;
    convolution = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC;
    alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
    beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA;
  }
}

OperationTensors tensors_of(const Descriptor& operation) {
  // For all operations of the fake: the attributes that name a tensor which the operation makes.
  static const std::set<AttributeName> results = {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                                  CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
                                                  CUDNN_ATTR_OPERATION_MATMUL_CDESC,
                                                  CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
                                                  CUDNN_ATTR_OPERATION_RESHAPE_YDESC};
  OperationTensors tensors;
  for (const auto& [name, attribute] : operation.attributes) {
    for (const Reference& each : attribute.descriptors) {
      if (each->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
        (results.contains(name) ? tensors.made : tensors.read).push_back(each);
      }
    }
  }
  require(!tensors.made.empty(), "a graph is made of operations", CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  return tensors;
}

}  // namespace shardrun::test::fake_cudnn
