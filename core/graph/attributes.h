#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::graph {

/// The few named constants of a node. Set when the graph is built; read by shape rules and kernels. Look-ups allocate
/// nothing.
class Attributes {
 public:
  using Scalar = std::variant<std::int64_t, double, std::string, std::vector<double>, std::vector<std::int64_t>>;

  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Scalar>> entries) : entries_(entries) {}

  /// Throw Error{internal} when the attribute is absent or of another type.
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double real(std::string_view name) const;
  [[nodiscard]] const std::string& text(std::string_view name) const;
  [[nodiscard]] const std::vector<double>& reals(std::string_view name) const;
  [[nodiscard]] const std::vector<std::int64_t>& integers(std::string_view name) const;

  [[nodiscard]] bool has(std::string_view name) const noexcept;
  /// REQUIRES: no attribute of that name exists.
  void add(std::string name, Scalar value) { entries_.emplace_back(std::move(name), std::move(value)); }

  [[nodiscard]] const std::vector<std::pair<std::string, Scalar>>& entries() const noexcept { return entries_; }

 private:
  std::vector<std::pair<std::string, Scalar>> entries_;
};

/// "{contract=1, transpose=0}", or nothing when there are none.
[[nodiscard]] std::string to_string(const Attributes& attributes);

}  // namespace shardrun::graph
