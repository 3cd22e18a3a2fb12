#include <algorithm>

#include "tests/kernels/case.h"

namespace shardrun::test {
namespace {

Shape with_last(Shape shape, std::int64_t last) {
  shape.push_back(last);
  return shape;
}

void derive_row_max(std::vector<Tensor>& inputs) {
  const auto width = inputs[0].type.shape.back();
  for (std::size_t l = 0; l < inputs[1].values.size(); ++l) {
    const auto row = inputs[0].values.begin() + static_cast<std::ptrdiff_t>(l) * width;
    inputs[1].values[l] = *std::max_element(row, row + width);
  }
}

template <std::int32_t vocabulary>
void add_cross_entropy_cases(std::vector<Case>& cases, const Shape& rows) {
  const Shape logits = with_last(rows, vocabulary);
  cases.push_back({"row_max", {}, {normal(logits)}});
  cases.push_back(
      {"softmax_terms", {}, {normal(logits), normal(rows), integers_below<vocabulary>(rows)}, derive_row_max});
  cases.push_back({"softmax_terms_gradient",
                   {},
                   {normal(logits), normal(rows), integers_below<vocabulary>(rows), normal(rows), normal(rows)},
                   derive_row_max});
}

}  // namespace

void add_loss_cases(std::vector<Case>& cases) {
  for (const Shape& rows : {Shape{}, Shape{1}, Shape{7}, Shape{2, 3, 5}, Shape{40007}}) {
    cases.push_back({"token_loss", {}, {normal(rows), positive(rows), normal(rows)}});
    cases.push_back({"token_loss_gradient_sum", {}, {normal(rows), positive(rows)}});
  }
  const std::vector<Shape> leading = {{}, {1}, {5}, {2, 7}, {3, 2, 5}, {617}};
  for (const Shape& rows : leading) {
    add_cross_entropy_cases<1>(cases, rows);
    add_cross_entropy_cases<2>(cases, rows);
    add_cross_entropy_cases<7>(cases, rows);
    add_cross_entropy_cases<65>(cases, rows);
    add_cross_entropy_cases<129>(cases, rows);
    for (const std::int64_t width : {1, 3, 33}) {
      const Shape shape = with_last(rows, width);
      cases.push_back({"squared_error", {}, {normal(shape), normal(shape)}});
      cases.push_back({"squared_error_gradient", {}, {normal(shape), normal(shape), normal(rows)}});
    }
  }
}

}  // namespace shardrun::test
