// How a library's products are planned: the list of copies and products, carried out on the host.

#include "core/device/cuda/runtime/product_steps.h"

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/philox.h"
#include "core/device/elements.h"
#include "core/graph/einsum.h"
#include "tests/support/catch.h"
#include "tests/unit/device/types.h"

using namespace shardrun;
using namespace shardrun::device;
using namespace shardrun::device::cuda;
using graph::DType;
using test::Shape;
using test::type_of;

namespace {

std::int64_t count_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

/// An op with its types.
struct Op {
  std::string name;
  graph::Attributes attributes;
  std::vector<graph::TensorType> inputs;
  std::vector<graph::TensorType> outputs;

  [[nodiscard]] graph::OpShape shape() const { return {attributes, inputs, outputs}; }
  [[nodiscard]] std::optional<ProductSteps> steps(const Padding& padding = {}) const {
    return product_steps(name, shape(), padding);
  }
};

/// x: [rows, inner], and w: [inner, columns] or its transpose. `gradient`: of w.
Op product_op(bool gradient, bool transposed, const Shape& sizes, DType operands, DType result) {
  const std::int64_t rows = sizes[0];
  const std::int64_t inner = sizes[1];
  const std::int64_t columns = sizes[2];
  const Shape w = transposed ? Shape{columns, inner} : Shape{inner, columns};
  const Shape y = {rows, columns};
  return {gradient ? "matmul_gradient_weights" : "matmul",
          {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{transposed ? 1 : 0}}},
          {type_of({rows, inner}, operands), type_of(gradient ? y : w, operands)},
          {type_of(gradient ? w : y, result)}};
}

Op einsum_op(const std::string& spec, const std::map<char, std::int64_t>& sizes, DType operands, DType result) {
  const graph::Einsum einsum = graph::parse_einsum(spec);
  const auto shape_of = [&](const std::string& letters) {
    Shape shape;
    for (const char letter : letters) {
      shape.push_back(sizes.at(letter));
    }
    return shape;
  };
  return {"einsum",
          {{"spec", spec}},
          {type_of(shape_of(einsum.a), operands), type_of(shape_of(einsum.b), operands)},
          {type_of(shape_of(einsum.result), result)}};
}

/// Memory of an op on the host: two operands of -1, 0 and 1, whose sums are exact in bfloat16, the result, and scratch.
class Memory {
 public:
  Memory(const Op& op, const ProductSteps& steps) {
    std::uint32_t stream = 0;
    for (const graph::TensorType& type : {op.inputs[0], op.inputs[1], op.outputs[0]}) {
      types_.push_back(type);
      std::vector<double> values(static_cast<std::size_t>(count_of(type.shape)));
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<double>(philox({static_cast<std::uint32_t>(i), stream, 0, 0}, {3, 5})[0] % 3) - 1;
      }
      ++stream;
      bytes_.emplace_back(values.size() * graph::element_bytes(type.dtype));
      write_elements(type.dtype, values, bytes_.back());
    }
    bytes_.emplace_back(steps.scratch_bytes, std::byte{0xA5});
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes_.back().data());
    scratch_ = steps.scratch_bytes == 0 ? 0 : (ProductSteps::alignment - begin % ProductSteps::alignment) % 256;
    // The planned bytes are enough for scratch that begins at a multiple of 64.
    scratch_room_ = static_cast<std::int64_t>(steps.scratch_bytes) - (256 - 64);
    bytes_.back().resize(steps.scratch_bytes + 256);
  }

  [[nodiscard]] std::byte* at(const Place& place, std::int64_t element, DType dtype) {
    const std::int64_t byte = place.byte + element * static_cast<std::int64_t>(graph::element_bytes(dtype));
    std::vector<std::byte>& of = bytes_[place.tensor];
    const bool is_scratch = place.tensor == Place::scratch;
    const std::int64_t room = is_scratch ? scratch_room_ : static_cast<std::int64_t>(of.size());
    if (byte < 0 || byte + static_cast<std::int64_t>(graph::element_bytes(dtype)) > room) {
      FAIL("byte " << byte << " of tensor " << place.tensor << " is outside of its " << room << " bytes");
    }
    return of.data() + static_cast<std::size_t>(byte) + (is_scratch ? scratch_ : 0);
  }
  [[nodiscard]] double get(const Place& place, std::int64_t element, DType dtype) {
    std::uint32_t bits = 0;
    const bool is_half = dtype == DType::bf16;
    std::memcpy(&bits, at(place, element, dtype), is_half ? 2 : 4);
    return std::bit_cast<float>(is_half ? bits << 16U : bits);
  }
  void set(const Place& place, std::int64_t element, DType dtype, double value) {
    write_elements(dtype, {&value, 1}, {at(place, element, dtype), graph::element_bytes(dtype)});
  }
  [[nodiscard]] std::vector<double> values(std::size_t tensor) {
    std::vector<double> found(static_cast<std::size_t>(count_of(types_[tensor].shape)));
    read_elements(types_[tensor].dtype, bytes_[tensor], found);
    return found;
  }

 private:
  std::vector<graph::TensorType> types_;
  std::vector<std::vector<std::byte>> bytes_;
  std::size_t scratch_ = 0;
  std::int64_t scratch_room_ = 0;
};

void carry_out(const CopyStep& step, Memory& memory) {
  const DType dtype = step.element_bytes == 2 ? DType::bf16 : DType::f32;
  for (std::int64_t number = 0; number < count_of(step.shape); ++number) {
    std::int64_t rest = number;
    std::int64_t from = 0;
    std::int64_t to = 0;
    for (std::size_t d = step.shape.size(); d-- > 0;) {
      from += rest % step.shape[d] * step.from_strides[d];
      to += rest % step.shape[d] * step.to_strides[d];
      rest /= step.shape[d];
    }
    std::memcpy(memory.at(step.to, to, dtype), memory.at(step.from, from, dtype), step.element_bytes);
  }
}

void carry_out(const ProductStep& step, bool accumulate, Memory& memory) {
  const auto& [m, n, k, a, b, c, fixed_order] = step.product;
  const auto at = [](const device::Operand& operand, std::int64_t row, std::int64_t column) {
    return operand.transposed ? column * operand.stride + row : row * operand.stride + column;
  };
  for (std::int64_t number = 0; number < step.batch; ++number) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t to = number * step.batch_strides[2] + at(c, i, j);
        double sum = accumulate ? memory.get(step.places[2], to, c.dtype) : 0;
        for (std::int64_t l = 0; l < k; ++l) {
          sum += memory.get(step.places[0], number * step.batch_strides[0] + at(a, i, l), a.dtype) *
                 memory.get(step.places[1], number * step.batch_strides[1] + at(b, l, j), b.dtype);
        }
        memory.set(step.places[2], to, c.dtype, sum);
      }
    }
  }
}

std::vector<double> result_of(const ProductSteps& steps, bool accumulate, Memory memory) {
  for (const auto& each : steps.steps) {
    if (const auto* const copy = std::get_if<CopyStep>(&each)) {
      if (!copy->only_adding || accumulate) {
        carry_out(*copy, memory);
      }
    } else {
      carry_out(std::get<ProductStep>(each), accumulate, memory);
    }
  }
  return memory.values(Place::result);
}

/// Computes the op by its formula: the sum over all indices of letters that the result lacks.
std::vector<double> by_definition(const Op& op, bool accumulate, Memory memory) {
  std::string spec = op.name != "einsum" ? "" : std::string(op.attributes.text("spec"));
  if (op.name == "matmul") {
    spec = op.attributes.integer("transpose") != 0 ? "lk,nk->ln" : "lk,kn->ln";
  } else if (spec.empty()) {
    spec = op.attributes.integer("transpose") != 0 ? "lk,ln->nk" : "lk,ln->kn";
  }
  const graph::Einsum einsum = graph::parse_einsum(spec);
  const std::string letters = einsum.result + graph::summed_letters(einsum);
  const std::vector<std::string> of_tensors = {einsum.a, einsum.b, einsum.result};
  const std::vector<Shape> shapes = {op.inputs[0].shape, op.inputs[1].shape, op.outputs[0].shape};
  Shape sizes;
  for (const char letter : letters) {
    for (std::size_t t = 0; t < 2; ++t) {
      if (const std::size_t found = of_tensors[t].find(letter); found != std::string::npos) {
        sizes.push_back(shapes[t][found]);
        break;
      }
    }
  }
  const std::vector<double> a = memory.values(0);
  const std::vector<double> b = memory.values(1);
  std::vector<double> y = memory.values(2);
  if (!accumulate) {
    std::ranges::fill(y, 0.0);
  }
  std::array<std::int64_t, 128> index = {};
  for (std::int64_t number = 0; number < count_of(sizes); ++number) {
    std::int64_t rest = number;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      index[static_cast<std::size_t>(letters[d])] = rest % sizes[d];
      rest /= sizes[d];
    }
    const auto offset = [&](std::size_t t) {
      std::int64_t sum = 0;
      for (std::size_t d = 0; d < shapes[t].size(); ++d) {
        sum = sum * shapes[t][d] + index[static_cast<std::size_t>(of_tensors[t][d])];
      }
      return static_cast<std::size_t>(sum);
    };
    y[offset(2)] += a[offset(0)] * b[offset(1)];
  }
  return y;
}

void check_result(const Op& op, const ProductSteps& steps) {
  const Memory memory(op, steps);
  for (const bool accumulate : {false, true}) {
    INFO("accumulate " << accumulate);
    CHECK(result_of(steps, accumulate, memory) == by_definition(op, accumulate, memory));
  }
}

std::vector<ProductStep> products_of(const ProductSteps& steps) {
  std::vector<ProductStep> products;
  for (const auto& each : steps.steps) {
    if (const auto* const product = std::get_if<ProductStep>(&each)) {
      products.push_back(*product);
    }
  }
  return products;
}

/// Whether all rows that the products read and write begin at multiples of 16 bytes.
bool has_aligned_rows(const ProductSteps& steps) {
  for (const ProductStep& step : products_of(steps)) {
    std::size_t t = 0;
    for (const device::Operand* operand : {&step.product.a, &step.product.b, &step.product.c}) {
      const auto bytes = static_cast<std::int64_t>(graph::element_bytes(operand->dtype));
      if (operand->stride * bytes % 16 != 0 || step.places[t].byte % 16 != 0) {
        return false;
      }
      ++t;
    }
  }
  return true;
}

constexpr Padding always = {.least_terms = 1, .least_terms_a_copy = 1, .most_bytes = 20000};

}  // namespace

TEST_CASE("products in padded parts equal the product", "[unit]") {
  for (const bool gradient : {false, true}) {
    for (const bool transposed : {false, true}) {
      for (const DType result : {DType::bf16, DType::f32}) {
        // The operands and the result are unaligned: one of them, two, and all.
        for (const Shape& sizes : {Shape{140, 8, 131}, Shape{140, 9, 136}, Shape{131, 8, 141}, Shape{131, 9, 141},
                                   Shape{16, 131, 40}, Shape{3, 5, 301}}) {
          const Op op = product_op(gradient, transposed, sizes, DType::bf16, result);
          INFO(op.name << " transposed " << transposed << ": " << sizes[0] << ", " << sizes[1] << ", " << sizes[2]);
          const std::optional<ProductSteps> steps = op.steps(always);

          REQUIRE(steps);
          CHECK(has_aligned_rows(*steps));
          check_result(op, *steps);
        }
      }
    }
  }
}

TEST_CASE("a large product is made in parts whose copies are small", "[unit]") {
  const Op op = product_op(false, true, {700, 8, 131}, DType::bf16, DType::bf16);
  const ProductSteps steps = op.steps(always).value();

  CHECK(products_of(steps).size() > 4);
  CHECK(steps.scratch_bytes < 128 * 136 * 2 + 1024 + 2 * 20000);
  check_result(op, steps);
}

TEST_CASE("logits of a vocabulary that is not a multiple of 8 are padded in a scratch of bounded size", "[unit]") {
  constexpr std::size_t most = (std::size_t{128 + 2 + 32} << 20);
  const Shape sizes = {16384, 768, 50257};
  const Op logits = product_op(false, true, sizes, DType::bf16, DType::bf16);
  // The gradient of x: that of logits times the transpose of the weights.
  const Op of_x = product_op(false, false, {16384, 50257, 768}, DType::bf16, DType::bf16);
  const Op of_w = product_op(true, true, sizes, DType::bf16, DType::f32);
  const Op untied = product_op(false, false, sizes, DType::bf16, DType::bf16);
  const Op of_untied = product_op(true, false, sizes, DType::bf16, DType::bf16);
  for (const Op& op : {logits, of_x, of_w, untied, of_untied}) {
    INFO(op.name << " transposed " << op.attributes.integer("transpose"));
    const ProductSteps steps = op.steps().value();
    CHECK(has_aligned_rows(steps));
    CHECK(steps.scratch_bytes <= most);
    CHECK(steps.scratch_bytes > std::size_t{64} << 20);
  }
  CHECK_FALSE(has_aligned_rows(product_op(false, true, {64, 64, 131}, DType::bf16, DType::bf16).steps().value()));
  CHECK(products_of(product_op(false, true, sizes, DType::f32, DType::f32).steps().value()).size() == 1);
}

TEST_CASE("the workspace of a product grows with it, up to 32 MiB", "[unit]") {
  const auto scratch = [](const Shape& sizes) {
    return product_op(false, false, sizes, DType::bf16, DType::bf16).steps().value().scratch_bytes;
  };
  CHECK(scratch({64, 48, 64}) == 0);
  CHECK(scratch({64, 64, 64}) == 64 * 64 * 4 + 192);
  CHECK(scratch({64, 256, 64}) == 4 * 64 * 64 * 4 + 192);
  CHECK(scratch({8192, 768, 3072}) == (std::size_t{32} << 20) + 192);
}

TEST_CASE("products of mixed types and empty products are left to our own kernel", "[unit]") {
  CHECK_FALSE(product_op(false, false, {8, 8, 8}, DType::f32, DType::bf16).steps());
  Op mixed = product_op(false, false, {8, 8, 8}, DType::bf16, DType::f32);
  mixed.inputs[1].dtype = DType::f32;
  CHECK_FALSE(mixed.steps());
  CHECK_FALSE(product_op(false, false, {8, 0, 8}, DType::bf16, DType::f32).steps());
  CHECK_FALSE(product_op(true, false, {0, 8, 8}, DType::bf16, DType::f32).steps());
}

TEST_CASE("an einsum made of copies and batched products equals the einsum", "[unit]") {
  const std::map<char, std::int64_t> sizes = {{'b', 3}, {'q', 17}, {'k', 19}, {'h', 4}, {'d', 8}, {'e', 2}, {'c', 50}};
  for (const char* spec : {"bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd", "bhqk,bqhd->bkhd", "bqd,dk->bqk", "qd,bkd->bkq",
                           "bcd,bed->bce", "bqd,bqk->dk", "hbqd,hdk->hbqk", "bqhd,dhk->bqk", "bqd,kd->kbq"}) {
    for (const DType operands : {DType::bf16, DType::f32}) {
      INFO(spec);
      const Op op = einsum_op(spec, sizes, operands, DType::f32);
      const std::optional<ProductSteps> steps = op.steps();
      REQUIRE(steps);
      CHECK(products_of(*steps).size() <= 12);
      check_result(op, *steps);
    }
  }
  CHECK_FALSE(einsum_op("be,beh->beh", {{'b', 30}, {'e', 30}, {'h', 30}}, DType::bf16, DType::bf16).steps());
}
