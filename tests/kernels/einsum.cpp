// Compares random contractions with a loop over all indices, on both devices.

#include "core/graph/einsum.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/device/elements.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

struct Expression {
  graph::Einsum letters;
  std::map<char, std::int64_t> sizes;

  [[nodiscard]] std::string text() const { return letters.a + "," + letters.b + "->" + letters.result; }
  [[nodiscard]] Shape shape_of(const std::string& tensor) const {
    Shape shape;
    for (const char c : tensor) {
      shape.push_back(sizes.at(c));
    }
    return shape;
  }
};

void shuffle(Random& random, std::string& letters) {
  for (std::size_t i = letters.size(); i > 1; --i) {
    std::swap(letters[i - 1], letters[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i)))]);
  }
}

/// Draws an expression of up to six letters, each in one operand or both, and in the result or not.
Expression draw(Random& random) {
  Expression drawn;
  const std::int64_t count = random.below(7);
  for (char c = 'a'; c < static_cast<char>('a' + count); ++c) {
    const std::int64_t operands = random.below(4);
    drawn.sizes[c] = 1 + random.below(9);
    drawn.letters.a += operands != 1 ? std::string(1, c) : "";
    drawn.letters.b += operands != 0 ? std::string(1, c) : "";
    drawn.letters.result += random.below(2) == 0 ? std::string(1, c) : "";
  }
  for (std::string* letters : {&drawn.letters.a, &drawn.letters.b, &drawn.letters.result}) {
    shuffle(random, *letters);
  }
  return drawn;
}

/// The row-major index of a tensor's element.
std::size_t index_of(const std::string& letters, const Expression& of, const std::map<char, std::int64_t>& at) {
  std::int64_t index = 0;
  for (const char c : letters) {
    index = index * of.sizes.at(c) + at.at(c);
  }
  return static_cast<std::size_t>(index);
}

/// Adds a b to the result, for all indices of all letters.
Tensor by_loop(const Expression& of, const Tensor& a, const Tensor& b, Tensor result) {
  std::map<char, std::int64_t> at;
  for (const auto& [letter, size] : of.sizes) {
    at[letter] = 0;
  }
  const bool empty = std::ranges::any_of(of.sizes, [](const auto& letter) { return letter.second == 0; });
  for (bool more = !empty; more;) {
    result.values[index_of(of.letters.result, of, at)] +=
        a.values[index_of(of.letters.a, of, at)] * b.values[index_of(of.letters.b, of, at)];
    more = false;
    for (const auto& [letter, size] : of.sizes) {
      if (++at[letter] < size) {
        more = true;
        break;
      }
      at[letter] = 0;
    }
  }
  return result;
}

Tensor drawn(Random& random, Shape shape, graph::DType dtype) {
  Tensor tensor = zeros(type_of(std::move(shape), dtype));
  random.fill_normal(tensor, 0, 1);
  device::round_elements(dtype, tensor.values);
  return tensor;
}

/// Compares an expression with the loop. Sums of bfloat16 are made in float32 and rounded once.
void check_expression(Random& random, const Expression& expression, graph::DType dtype) {
  const std::vector<Tensor> operands = {drawn(random, expression.shape_of(expression.letters.a), dtype),
                                        drawn(random, expression.shape_of(expression.letters.b), dtype)};
  const Tensor before = drawn(random, expression.shape_of(expression.letters.result), dtype);
  const Tensor zero = zeros(before.type);
  const graph::Attributes attributes = {{"spec", expression.text()}};
  const bool bfloat = dtype == graph::DType::bf16;
  for (const bool accumulate : {false, true}) {
    const Tensor expected = by_loop(expression, operands[0], operands[1], accumulate ? before : zero);
    for (const device::Device* on : {&reference(), &fast()}) {
      for (const int threads : {1, 3}) {
        INFO(on->name() << ", " << graph::to_string(dtype) << ", accumulate " << accumulate << ", threads " << threads);
        const Tensor found = execute(*on, {.op = "einsum",
                                           .attributes = attributes,
                                           .inputs = operands,
                                           .outputs = {before},
                                           .threads = threads,
                                           .accumulate = accumulate})[0];
        const double rounding = bfloat ? 1.01 * 0x1p-8 : 0;
        const Tolerance exact = {.of_element = rounding, .of_largest = 1e-14};
        const Tolerance floats = {.of_element = rounding, .of_largest = 2e-6};
        CHECK(difference(found, expected, on == &reference() ? exact : floats) == "");
      }
    }
  }
}

}  // namespace

TEST_CASE("300 random expressions equal a loop over all indices", "[kernels]") {
  Random random(20);
  for (int number = 0; number < 300; ++number) {
    const Expression expression = draw(random);
    std::string sizes;
    for (const auto& [letter, size] : expression.sizes) {
      sizes += fmt::format(" {}={}", letter, size);
    }
    INFO(expression.text() << sizes);
    check_expression(random, expression, graph::DType::f32);
    if (number % 3 == 0) {
      check_expression(random, expression, graph::DType::bf16);
    }
  }
}

TEST_CASE("an einsum of an empty shard adds nothing", "[kernels]") {
  Random random(21);
  for (const char* text : {"be,beh->beh", "beh,beh->be", "be,beh->h", "bh,hb->", "beh,bh->eb", "beh,bd->edh"}) {
    for (const char empty : {'b', 'e', 'h'}) {
      Expression expression{.letters = graph::parse_einsum(text), .sizes = {{'b', 70}, {'d', 20}, {'e', 3}, {'h', 21}}};
      std::erase_if(expression.sizes, [&](const auto& letter) {
        return (expression.letters.a + expression.letters.b).find(letter.first) == std::string::npos;
      });
      if (expression.sizes.contains(empty)) {
        expression.sizes[empty] = 0;
      }
      INFO(text << " without " << empty);
      check_expression(random, expression, graph::DType::f32);
    }
  }
}

TEST_CASE("a malformed expression is refused, and the error quotes it", "[kernels]") {
  const auto message_of = [](const char* text) {
    return error_of([&] { static_cast<void>(graph::parse_einsum(text)); });
  };
  CHECK(message_of("ij,jk").find("einsum \"ij,jk\": it does not have that form; expected two operands and a result, "
                                 "as in \"bij,bjk->bik\"") != std::string::npos);
  CHECK(message_of("ij->ji").find("it does not have that form") != std::string::npos);
  CHECK(message_of("ii,ij->j").find("'i' stands twice in \"ii\"") != std::string::npos);
  CHECK(message_of("i1,ij->j").find("'1' is not a letter") != std::string::npos);
  CHECK(message_of("ij,jk->il").find("the result's 'l' stands in no operand") != std::string::npos);
}
